"""What a run prints about completions that hit the length limit."""

NOTEWORTHY = 0.05
"""Share of truncated completions from which a run prints it."""


def describe_truncated(
    truncated: int, completions: int, max_completion_length: int, max_turns: int | None = None
) -> list[str]:
    """Return a sentence about completions cut at a limit; none if they are less than a twentieth.

    Also none for a limit of 1: such completions only carry the likelihood of an answer. `max_turns` is the limit of
    episodes, which end there as well.
    """
    if truncated < NOTEWORTHY * completions or not truncated or max_completion_length == 1:
        return []
    limits = f"max_completion_length: {max_completion_length}"
    if max_turns is not None:
        limits += f" or max_turns: {max_turns}"
    share = truncated / completions
    return [
        f"{truncated} of {completions} completions ({share:.0%}) were cut at {limits}; they never reached their end"
    ]
