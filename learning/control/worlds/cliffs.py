"""Cliffs: grids with a wind, whose shortest way leads along the edge; every cell is a state with a number."""

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.grids import MOVES, Cell, Info

Several = Annotated[int, Field(ge=2)]
Chance = Annotated[float, Field(ge=0, le=1)]


class Cliffs(gymnasium.Env):
    """From the lower left corner to the lower right one, which pays 1; pits and the corner end the episode.

    After every move the wind may push by one cell: first up, else down. A move against the border stays.
    """

    def __init__(self, width: int, height: int, pits: frozenset[Cell], up: float, down: float, limit: int) -> None:
        self.width, self.height, self.pits, self.winds, self.limit = width, height, pits, (up, down), limit
        self.observation_space = gymnasium.spaces.Discrete(width * height)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin in the lower left corner."""
        super().reset(seed=seed)
        self.cell, self.steps = (self.height - 1, 0), 0
        return self.observe(), {}

    def observe(self) -> int:
        """Return the number of the cell, row by row."""
        return self.cell[0] * self.width + self.cell[1]

    def push(self, direction: int) -> None:
        """Go by one cell."""
        row, column = (old + change for old, change in zip(self.cell, MOVES[direction], strict=True))
        self.cell = min(max(row, 0), self.height - 1), min(max(column, 0), self.width - 1)

    @property
    def is_home(self) -> bool:
        """Return whether the corner that pays is reached."""
        return self.cell == (self.height - 1, self.width - 1)

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Move, and be pushed by the wind unless the move ended the episode."""
        self.push(int(action))
        drawn, (up, down) = float(self.np_random.random()), self.winds
        if not self.is_home and self.cell not in self.pits and drawn < up + down:
            self.push(0 if drawn < up else 1)
        self.steps += 1
        done = self.is_home or self.cell in self.pits
        return self.observe(), float(self.is_home), done, not done and self.steps >= self.limit, {}


def cliffs(
    *,
    width: Several = 4,
    height: Several = 3,
    pits: Sequence[tuple[int, int]] | None = None,
    up: Chance = 0.0,
    down: Chance = 0.0,
    limit: Annotated[int, Field(ge=1)] = 30,
) -> gymnasium.Env:
    """Return a grid with a wind; pits (row, column) are by default the lowest row between both corners."""
    between = [(height - 1, column) for column in range(1, width - 1)]
    return Cliffs(
        width, height, frozenset((row, column) for row, column in (between if pits is None else pits)), up, down, limit
    )


class Branches(gymnasium.Env):
    """Two choices: the first leads to a branch, the second to one of its leaves, whose number is the mean reward."""

    def __init__(self, leaves: np.ndarray, slip: float) -> None:
        self.leaves, self.slip = leaves, slip
        self.observation_space = gymnasium.spaces.Discrete(1 + len(leaves))
        self.action_space = gymnasium.spaces.Discrete(len(leaves))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin at the root."""
        super().reset(seed=seed)
        self.branch: int | None = None
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Take a branch, or earn a leaf; with chance `slip` the choice is drawn evenly."""
        if self.np_random.random() < self.slip:
            action = int(self.np_random.integers(len(self.leaves)))
        if self.branch is None:
            self.branch = int(action)
            return 1 + self.branch, 0.0, False, False, {}
        return 1 + self.branch, float(self.leaves[self.branch, action]), True, False, {}


def branches(*, leaves: list[list[float]] = [[0.6, 0.6], [1.0, 0.0]], slip: Chance = 0.0) -> Any:  # noqa: B006 — readable
    """Return a tree of two choices with as many leaves of each branch as there are branches."""
    return Branches(np.array(leaves, float), slip)
