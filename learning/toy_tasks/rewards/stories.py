"""Faults of the next sentence of a story."""

from learning.data.rows import Row
from learning.toy_tasks.stories import count_broken_rules


def broken_rules(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Number of rules that the sentence breaks in the story of its prompt."""
    return [
        float(count_broken_rules(row["prompt"][-1]["content"].split("\n"), text))
        for row, text in zip(rows, completions, strict=True)
    ]
