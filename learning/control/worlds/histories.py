"""Worlds that are seen in part: a corridor whose first sign must be remembered, and observations of whole histories.

Shapes: N worlds, O numbers of an observation, K steps of a history.
"""

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import flatdim, flatten
from pydantic import Field

from learning.lookup import Inner
from schemas.control import WorldUse
from schemas.errors import StepError

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
"""Option of a function: a world, which it gets bound."""
Several = Annotated[int, Field(ge=2)]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
FORWARD, LEFT, RIGHT = 0, 1, 2


class Remembering(gymnasium.Env):
    """Shows the last `steps` observations of a world in place of the newest one, the newest last, and zeros before."""

    def __init__(self, world: Any, steps: int) -> None:
        try:
            self.size = int(flatdim(world.observation_space))
        except (NotImplementedError, ValueError) as error:
            raise StepError(f"env remembering: observations of {world.observation_space} have no fixed size") from error
        self.world, self.action_space = world, world.action_space
        self.seen: deque[np.ndarray] = deque(maxlen=steps)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (steps * self.size,), np.float32)

    def show(self, observation: Any) -> np.ndarray:
        """Return the history with a new observation."""
        self.seen.append(np.asarray(flatten(self.world.observation_space, observation), np.float32))
        return np.concatenate(self.seen)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin an episode without a history."""
        super().reset(seed=seed)
        self.seen.extend([np.zeros(self.size, np.float32)] * (self.seen.maxlen or 1))
        observation, info = self.world.reset(seed=seed, options=options)
        return self.show(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Act, and add what is seen."""
        observation, *rest = self.world.step(action)
        return self.show(observation), *rest

    def close(self) -> None:
        """Close the world."""
        self.world.close()


def remembering(*, of: WorldFunction, steps: Several) -> Remembering:
    """Return a world that shows its last `steps` observations, so that a policy without a memory has one."""
    return Remembering(of(), steps)


class Maze(gymnasium.Env):
    """A corridor that ends in a fork; the sign at its entrance says which way earns 1, the other way earns 0.

    In every cell but the entrance one of `symbols` symbols that mean nothing is shown, drawn evenly. The observation is
    the sign (2 numbers), the symbol and the cell. Turning in the corridor is a step without effect.
    """

    def __init__(self, length: int, symbols: int, entrance: int, limit: int) -> None:
        self.length, self.symbols, self.entrance, self.limit = length, symbols, entrance, limit
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2 + symbols + length + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def observe(self, *, shows_sign: bool) -> np.ndarray:
        """Return the sign or a symbol, with the cell."""
        shown = np.zeros(2 + self.symbols + self.length + 1, np.float32)
        shown[self.sign if shows_sign else 2 + int(self.np_random.integers(self.symbols))] = 1.0
        shown[2 + self.symbols + self.cell] = 1.0
        return shown

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin at the entrance, with a sign that is drawn evenly."""
        super().reset(seed=seed)
        self.sign, self.cell, self.steps = int(self.np_random.integers(2)), self.entrance, 0
        return self.observe(shows_sign=True), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Go on, or turn."""
        self.steps += 1
        ended = self.cell == self.length and action != FORWARD
        earned = float(ended and action == LEFT + self.sign)
        self.cell = min(self.cell + (action == FORWARD), self.length)
        return self.observe(shows_sign=False), earned, ended, not ended and self.steps >= self.limit, {}


def t_maze(
    *,
    length: Several = 6,
    symbols: Annotated[int, Field(ge=1)] = 4,
    entrance: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(ge=1)] = 12,
) -> Maze:
    """Return a corridor of `length` cells before a fork; episodes begin, with the sign, in the cell `entrance`."""
    if entrance >= length:
        raise StepError(f"t_maze: the entrance {entrance} must lie before the fork, cell {length}")
    return Maze(length, symbols, entrance, limit)


def walk_and_turn(observation_NO: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Go forward in `t_maze`, also in its histories, and turn at random at the fork, which the last number shows."""
    turn_N = rng.integers(LEFT, RIGHT + 1, size=len(observation_NO))
    return np.where(observation_NO[:, -1] == 1, turn_N, FORWARD)
