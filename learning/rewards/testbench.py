"""Rewards from a simulator of circuits."""

from typing import Any

from learning.toy_tasks.circuits import pass_rate


def passed(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """Share of the test vectors that the circuit answers rightly, 0 for a text that is none."""
    return [pass_rate(row, text) for row, text in zip(rows, completions, strict=True)]
