"""A grid with a key, a locked door and a treasure behind it, which alone pays; and what happens in words.

Shapes: N worlds, O numbers of an observation.
"""

from typing import Annotated

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.grids import MOVES, Cell, Info


class KeyDoor(gymnasium.Env):
    """Two rooms with a wall between them; the door in it opens to the one who has the key.

    Observations are row and column, whether the key is held and whether the door is open, then the cell one-hot. The
    key lies in the lower left corner, the treasure in the upper right one, and the door is in the middle of the wall.
    """

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit, self.middle = size, limit, size // 2
        self.door, self.key, self.treasure = (self.middle, self.middle), (size - 1, 0), (0, size - 1)
        self.observation_space = gymnasium.spaces.Box(0, 1, (4 + size * size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin in the upper part of the left room."""
        super().reset(seed=seed)
        self.cell: Cell = (int(self.np_random.integers(self.middle)), int(self.np_random.integers(self.middle)))
        self.has_key = self.is_open = False
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        """Return what is seen."""
        where = np.zeros(self.size * self.size, np.float32)
        where[self.cell[0] * self.size + self.cell[1]] = 1
        place = np.array(self.cell, np.float32) / (self.size - 1)
        return np.concatenate([place, np.array([self.has_key, self.is_open], np.float32), where])

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Walk; what bars the way stays, but a door of which one has the key."""
        row, column = (old + change for old, change in zip(self.cell, MOVES[action], strict=True))
        inside = 0 <= row < self.size and 0 <= column < self.size
        if inside and (row, column) == self.door:
            self.is_open = self.has_key
        if inside and (column != self.middle or ((row, column) == self.door and self.is_open)):
            self.cell = (row, column)
        self.has_key |= self.cell == self.key
        self.steps += 1
        done = self.cell == self.treasure
        return self.observe(), float(done), done, not done and self.steps >= self.limit, {}


def key_door(*, size: Annotated[int, Field(ge=5)] = 7, limit: Annotated[int, Field(ge=1)] = 60) -> KeyDoor:
    """Return two rooms with a locked door: the key is in one, the treasure, which pays 1, in the other."""
    return KeyDoor(size, limit)


def key_door_events(observation_NO: np.ndarray, next_observation_NO: np.ndarray) -> list[str]:
    """Return what happened in each `key_door` in words; nothing for a step that only moves."""
    return [_describe(before, after) for before, after in zip(observation_NO, next_observation_NO, strict=True)]


def _describe(before_O: np.ndarray, after_O: np.ndarray) -> str:
    if after_O[2] > before_O[2]:
        return "You pick up a key."
    if after_O[3] > before_O[3]:
        return "You unlock the door."
    if after_O[0] == 0 and after_O[1] == 1:
        return "You find the treasure."
    return "You bump into something." if (before_O[:2] == after_O[:2]).all() else ""


def shown_text(next_observation_NO: np.ndarray) -> list[str]:
    """Return the text that each world shows after a step, in worlds that show one in bytes, as `as_json`."""
    return [row.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace") for row in next_observation_NO]
