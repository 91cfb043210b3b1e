"""Worlds of one choice that depends on a category: contextual bandits with known rewards."""

from collections.abc import Sequence
from typing import Annotated

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.grids import Info
from schemas.errors import StepError


class Contexts(gymnasium.Env):
    """Shows a category, drawn evenly; one choice earns the table's entry, and ends the episode."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table
        self.observation_space = gymnasium.spaces.Discrete(len(table))
        self.action_space = gymnasium.spaces.Discrete(table.shape[1])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Draw a category."""
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(len(self.table)))
        return self.context, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Choose, and end."""
        return self.context, float(self.table[self.context, int(action)]), True, False, {}


def contexts(*, table: Annotated[Sequence[Sequence[float]], Field(min_length=2)]) -> Contexts:
    """Return a contextual bandit: `table` has the reward of each choice (columns) in each category (rows)."""
    sizes = {len(row) for row in table}
    if len(sizes) != 1 or min(sizes) < 2:
        raise StepError("contexts: every row of the table needs as many rewards, two at least")
    return Contexts(np.array(table, float))
