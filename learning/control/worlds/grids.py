"""Small grid worlds with known best actions: an empty grid, and two rooms of which there are many levels."""

from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

Cell = tuple[int, int]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
MOVES: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right, as changes of row and column."""
Count = Annotated[int, Field(ge=1)]


class Grid(gymnasium.Env):
    """A square of cells; the far corner pays 1 and ends the episode, which is cut off after `limit` steps.

    Observations are row and column, from 0 to 1. A move against the border stays.
    """

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin in the corner."""
        super().reset(seed=seed)
        self.cell, self.steps = (0, 0), 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        """Return row and column."""
        return np.array(self.cell, np.float32) / (self.size - 1)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move."""
        row, column = (
            min(max(old + change, 0), self.size - 1) for old, change in zip(self.cell, MOVES[action], strict=True)
        )
        self.cell, self.steps = (row, column), self.steps + 1
        done = self.cell == (self.size - 1, self.size - 1)
        return self.observe(), float(done), done, not done and self.steps >= self.limit, {}


def grid(*, size: Annotated[int, Field(ge=2)] = 6, limit: Count = 40) -> gymnasium.Env:
    """Return a square grid that begins in one corner and pays 1 in the opposite one."""
    return Grid(size, limit)


class Rooms(gymnasium.Env):
    """Two rooms behind a wall with one door; start in the left one, goal in the right one, drawn for each level.

    The seed of an episode chooses one of `levels` levels from `first` on. Observations are the whole map: walls, goal
    and agent as three layers. The goal pays 1 − 0.9 · steps / limit, as in MiniGrid.
    """

    def __init__(self, size: int, levels: int, first: int, limit: int) -> None:
        self.size, self.levels, self.first, self.limit = size, levels, first, limit
        self.observation_space = gymnasium.spaces.Box(0, 1, (3, size, size), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin in a level that the seed chooses."""
        super().reset(seed=seed)
        self.level = self.first + int(self.np_random.integers(self.levels))
        self.walls, self.goal, self.cell = _draw_level(self.size, self.level)
        self.steps = 0
        return self.observe(), {"level": self.level}

    def observe(self) -> np.ndarray:
        """Return the map."""
        layers = np.zeros((3, self.size, self.size), np.float32)
        layers[0] = self.walls
        layers[1][self.goal] = layers[2][self.cell] = 1
        return layers

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move, unless there is a wall."""
        row, column = (old + change for old, change in zip(self.cell, MOVES[action], strict=True))
        if 0 <= row < self.size and 0 <= column < self.size and not self.walls[row, column]:
            self.cell = (row, column)
        self.steps += 1
        done = self.cell == self.goal
        reward = 1 - 0.9 * self.steps / self.limit if done else 0.0
        return self.observe(), reward, done, not done and self.steps >= self.limit, {}


def _draw_level(size: int, level: int) -> tuple[np.ndarray, Cell, Cell]:
    """Return the walls (size, size), the goal and the start of a level."""
    rng = np.random.default_rng([size, level])
    walls = np.zeros((size, size), bool)
    wall = int(rng.integers(1, size - 1))
    walls[:, wall] = True
    walls[int(rng.integers(size)), wall] = False
    goal = int(rng.integers(size)), int(rng.integers(wall + 1, size))
    start = int(rng.integers(size)), int(rng.integers(wall))
    return walls, goal, start


def rooms(
    *,
    size: Annotated[int, Field(ge=3)] = 5,
    levels: Count = 100,
    first: Annotated[int, Field(ge=0)] = 0,
    limit: Count = 40,
) -> gymnasium.Env:
    """Return two rooms with a door; levels from `first` on, so that other numbers are levels never seen."""
    return Rooms(size, levels, first, limit)
