"""Rewards from a testbench of a module's golden code."""

from typing import Any

from learning.toy_tasks import hardware


def equivalent(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """1 where code does what the row's golden code does, on every input or sequence of inputs, else 0."""
    return [float(hardware.equivalent(row, text)) for row, text in zip(rows, completions, strict=True)]
