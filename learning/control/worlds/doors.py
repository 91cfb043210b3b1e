"""A small world to explain policies in: two rooms with a door, two parts of a reward, a number without a meaning."""

from typing import Annotated

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces
from learning.control.worlds.grids import MOVES, Cell, Info

SIZE, WALL = 5, 2
DOOR: Cell = (2, 2)
GOAL: Cell = (4, 4)


class Doors(gymnasium.Env):
    """From the left room through the door to the lower right corner; rewards are (the goal, the price of a step).

    Observations are row and column one-hot, and a bit that is drawn again in every step.
    """

    def __init__(self, price: float, limit: int) -> None:
        self.price, self.limit = price, limit
        self.observation_space = gymnasium.spaces.Box(0, 1, (2 * SIZE + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin somewhere in the left room."""
        super().reset(seed=seed)
        self.cell: Cell = (int(self.np_random.integers(SIZE)), int(self.np_random.integers(WALL)))
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        """Return where the agent is, and a drawn bit."""
        seen = np.zeros(2 * SIZE + 1, np.float32)
        seen[[self.cell[0], SIZE + self.cell[1]]] = 1
        seen[-1] = self.np_random.integers(2)
        return seen

    def step(self, action: int) -> tuple[np.ndarray, np.ndarray, bool, bool, Info]:
        """Move, unless there is the wall or a border."""
        row, column = (old + change for old, change in zip(self.cell, MOVES[int(action)], strict=True))
        inside = 0 <= row < SIZE and 0 <= column < SIZE
        if inside and (column != WALL or (row, column) == DOOR):
            self.cell = (row, column)
        self.steps += 1
        done = self.cell == GOAL
        return self.observe(), np.array([float(done), -self.price]), done, not done and self.steps >= self.limit, {}


def doors(*, price: Annotated[float, Field(ge=0)] = 0.02, limit: Annotated[int, Field(ge=1)] = 40) -> Doors:
    """Return two rooms with a door, whose rewards are two: the goal, and the price of every step."""
    return Doors(price, limit)


def through_door(observation_NO: np.ndarray, spaces: Spaces) -> np.ndarray:
    """Return the move of an expert who knows `doors`: to the door's row, through it, and to the corner."""
    row_N, column_N = observation_NO[:, :SIZE].argmax(1), observation_NO[:, SIZE : 2 * SIZE].argmax(1)
    is_left_N = column_N < WALL
    up_N, down_N = is_left_N & (row_N > DOOR[0]), is_left_N & (row_N < DOOR[0])
    right_N = (column_N < SIZE - 1) & ~up_N & ~down_N
    return np.where(up_N, 0, np.where(down_N | ~right_N, 1, 3))
