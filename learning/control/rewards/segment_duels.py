"""Duels: the probability that one piece of an episode is preferred to another; what they judge need not be a sum."""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.control.rewards.segments import Segment
from schemas.errors import StepError


def by_table(first: Segment, second: Segment, *, table: Sequence[Sequence[float]]) -> float:
    """Return the table's entry for the first choices of both: P(row is preferred to column)."""
    row, column = int(first.action[0]), int(second.action[0])
    if max(row, column) >= len(table):
        raise StepError(f"duel by_table: there is a choice {max(row, column)}, and {len(table)} rows")
    return float(table[row][column])


def higher_return(first: Segment, second: Segment, *, scale: Annotated[float, Field(gt=0)] | None = None) -> float:
    """Prefer the higher sum of the world's rewards: surely, or by σ((a − b) / scale); equal ones are a draw."""
    apart = float(np.sum(first.reward) - np.sum(second.reward))
    return (1 + math.tanh(apart / scale / 2)) / 2 if scale is not None else (apart > 0) + 0.5 * (apart == 0)
