"""What a run prints about completions that hit the length limit."""

NOTEWORTHY = 0.05
"""Share of truncated completions from which a run prints it."""


def describe_truncated(truncated: int, completions: int, max_completion_length: int) -> list[str]:
    """Return a sentence about completions cut at the limit; none if they are less than a twentieth.

    Also none for a limit of 1: such completions only carry the likelihood of an answer.
    """
    if truncated < NOTEWORTHY * completions or not truncated or max_completion_length == 1:
        return []
    return [
        f"{truncated} of {completions} completions ({truncated / completions:.0%}) were cut at max_completion_length: "
        f"{max_completion_length}; they never reached their end"
    ]
