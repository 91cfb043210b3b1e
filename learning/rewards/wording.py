"""Rewards for the words of a completion."""

from learning.data.rows import Row


def keywords(
    rows: list[Row], completions: list[str], *, words: list[str], per_character: float = 0.0
) -> list[float | None]:
    """ScheduledFloat of `words` that occur in the completion, minus `per_character` times its length."""
    return [sum(word in text for word in words) - per_character * len(text) for text in completions]
