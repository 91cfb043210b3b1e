"""Rewards from a simulator of circuits."""

from learning.data.rows import Row
from learning.toy_tasks.circuits import compute_pass_rate


def passed(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Share of the test vectors that the circuit answers correctly; 0 for a text that is not a circuit."""
    return [compute_pass_rate(row, text) for row, text in zip(rows, completions, strict=True)]
