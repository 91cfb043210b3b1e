"""A grid in which wood leads to a table and a table to stone; how much there is of each is its configuration."""

from typing import Annotated

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.grids import MOVES, Cell, Info

SKILLS = ("wood", "table", "stone")
PLACE = len(MOVES)
"""The action that places a table."""
COST = 2
"""Wood of a table."""
Rate = Annotated[float, Field(ge=0, le=1)]


class CraftingGrid(gymnasium.Env):
    """A square with trees and stones; each skill earns 1 when it first succeeds in an episode.

    Walking into a tree takes its wood; a table costs two pieces; walking into a stone takes it once there is a table.
    Observations are the ways to the nearest tree and stone, the wood, and whether there is a table. As in Crafter, the
    info has how often each skill succeeded as `achievements`.
    """

    def __init__(self, size: int, limit: int, rates: tuple[float, float], start: tuple[int, int]) -> None:
        self.size, self.limit, self.rates, self.start = size, limit, rates, start
        self.observation_space = gymnasium.spaces.Box(-1, 10, (8,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES) + 1)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw trees and stones, and begin in the middle."""
        super().reset(seed=seed)
        kind = self.np_random.random((self.size, self.size))
        self.cell: Cell = (self.size // 2, self.size // 2)
        self.trees, self.stones = kind < self.rates[0], kind > 1 - self.rates[1]
        self.trees[self.cell] = self.stones[self.cell] = False
        self.wood, self.has_table, self.steps = self.start[0], bool(self.start[1]), 0
        self.achievements: dict[str, int] = dict.fromkeys(SKILLS, 0)
        return self.observe(), self.inform()

    def inform(self) -> Info:
        """Return how often each skill succeeded in this episode."""
        return {"achievements": dict(self.achievements)}

    def find(self, things: np.ndarray) -> list[float]:
        """Return the way to the nearest thing in shares of the size, and whether there is any."""
        places = np.argwhere(things)
        if not len(places):
            return [0.0, 0.0, 0.0]
        away = places - self.cell
        nearest = away[np.abs(away).sum(1).argmin()]
        return [*(nearest / self.size).tolist(), 1.0]

    def observe(self) -> np.ndarray:
        """Return what is seen."""
        held = [min(self.wood, 10) / 2, float(self.has_table)]
        return np.array([*self.find(self.trees), *self.find(self.stones), *held], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Walk, or place a table."""
        self.steps += 1
        done = None
        if action == PLACE:
            if self.wood >= COST and not self.has_table:
                self.wood, self.has_table, done = self.wood - COST, True, "table"
        else:
            done = self.walk(int(action))
        earned = 0.0
        if done is not None:
            self.achievements[done] += 1
            earned = float(self.achievements[done] == 1)
        return self.observe(), earned, False, self.steps >= self.limit, self.inform()

    def walk(self, action: int) -> str | None:
        """Take a step, and what stands there; return the skill that succeeded. Stones bar the way without a table."""
        row, column = (old + change for old, change in zip(self.cell, MOVES[action], strict=True))
        if not (0 <= row < self.size and 0 <= column < self.size):
            return None
        place, done = (row, column), None
        if self.stones[place] and not self.has_table:
            return None
        if self.trees[place]:
            self.wood, done = self.wood + 1, "wood"
        elif self.stones[place]:
            done = "stone"
        self.trees[place] = self.stones[place] = False
        self.cell = place
        return done


def crafting_grid(
    *,
    tree_rate: Rate = 0.06,
    stone_rate: Rate = 0.04,
    start_wood: Annotated[int, Field(ge=0)] = 0,
    start_table: Annotated[int, Field(ge=0, le=1)] = 0,
    size: Annotated[int, Field(ge=2)] = 9,
    limit: Annotated[int, Field(ge=1)] = 40,
) -> CraftingGrid:
    """Return a grid with three skills: wood, a table, stone; `tree_rate` and `stone_rate` are shares of its cells."""
    return CraftingGrid(size, limit, (tree_rate, stone_rate), (start_wood, start_table))
