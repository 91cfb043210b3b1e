"""Rewards from a testbench with a module's golden code."""

from learning.data.rows import Row
from learning.toy_tasks import hardware


def equivalent(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the code behaves as the row's golden code on every input or sequence of inputs, else 0."""
    return [float(hardware.is_equivalent(row, text)) for row, text in zip(rows, completions, strict=True)]
