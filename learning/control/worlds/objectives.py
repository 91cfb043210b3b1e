"""Worlds with several objectives: their rewards are vectors, and a policy observes how much each of them counts.

Shapes: W weights, K objectives.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.grids import MOVES, Info
from learning.lookup import Inner
from schemas.control import WorldUse
from schemas.errors import StepError

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
"""Option of a function: a world, which it gets bound."""
Number = Annotated[int, Field(ge=0)]


class Treasure(gymnasium.Env):
    """A submarine in the upper left corner of the sea; treasures lie on its floor, and the deeper the more they pay.

    Rewards are (treasure, −1), as in Deep Sea Treasure (Vamplew et al. 2011). Below the floor nothing can be entered.
    """

    def __init__(self, floor: Sequence[int], worth: Sequence[float], limit: int) -> None:
        self.floor, self.worth, self.limit = list(floor), list(worth), limit
        self.height, self.width = max(floor) + 1, len(floor)
        self.observation_space = gymnasium.spaces.Discrete(self.height * self.width)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin in the upper left corner."""
        super().reset(seed=seed)
        self.cell, self.steps = (0, 0), 0
        return 0, {}

    def step(self, action: int) -> tuple[int, Any, bool, bool, Info]:
        """Move, unless there is ground or a border; a treasure ends the episode."""
        row, column = (old + change for old, change in zip(self.cell, MOVES[int(action)], strict=True))
        if row >= 0 and 0 <= column < self.width and row <= self.floor[column]:
            self.cell = (row, column)
        self.steps += 1
        done = self.cell[0] == self.floor[self.cell[1]]
        reward_K = np.array([self.worth[self.cell[1]] if done else 0.0, -1.0])
        number = self.cell[0] * self.width + self.cell[1]
        return number, reward_K, done, not done and self.steps >= self.limit, {}


def treasure(
    *,
    floor: list[Annotated[int, Field(ge=1)]] = [1, 2, 3, 3],  # noqa: B006 — readable
    worth: list[float] = [1.0, 2.0, 5.0, 8.0],  # noqa: B006 — readable
    limit: Annotated[int, Field(ge=1)] = 20,
) -> Treasure:
    """Return a sea whose column i has its treasure, `worth[i]`, in row `floor[i]`; rewards are (treasure, −1)."""
    if len(floor) != len(worth):
        raise StepError(f"env treasure: {len(floor)} columns have a floor, and {len(worth)} a worth")
    return Treasure(floor, worth, limit)


class Weighted(gymnasium.Env):
    """A world with several objectives, whose reward is their weighted sum; the observation shows which weights count.

    States become as many for each weight; other observations are followed by the weights.
    """

    def __init__(self, world: Any, weight_WK: np.ndarray, weight: int | None, objective: int | None) -> None:
        self.world, self.weight_WK, self.fixed, self.objective = world, weight_WK, weight, objective
        self.action_space = world.action_space
        seen: Any = world.observation_space
        is_table = isinstance(seen, gymnasium.spaces.Discrete)
        self.states = int(seen.n) if is_table else None
        self.observation_space: Any
        if self.states is not None:
            self.observation_space = gymnasium.spaces.Discrete(self.states * len(weight_WK))
        else:
            low, high = (np.asarray(getattr(seen, name), np.float32).reshape(-1) for name in ("low", "high"))
            least, most = weight_WK.min(0), weight_WK.max(0)
            bottom = np.concatenate([low, least]).astype(np.float32)
            top = np.concatenate([high, most]).astype(np.float32)
            self.observation_space = gymnasium.spaces.Box(bottom, top, dtype=np.float32)

    def _show(self, observation: Any) -> Any:
        if self.states is not None:
            return int(observation) + self.states * self.place
        return np.concatenate([np.asarray(observation).reshape(-1), self.weight_WK[self.place]]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin with the given weights, or with weights that the seed chooses."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self.weight_WK)))
        self.place = drawn if self.fixed is None else self.fixed
        observation, info = self.world.reset(seed=seed, options=options)
        return self._show(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Act, and earn the weighted sum, or one objective; `objectives` of the info has all of them."""
        observation, reward, terminated, truncated, info = self.world.step(action)
        reward_K = np.asarray(reward, float)
        if reward_K.shape != self.weight_WK[0].shape:
            wanted = self.weight_WK.shape[1]
            raise StepError(f"env weighted: {reward} is not a reward of {wanted} objectives, as `weights` has")
        earned = float(self.weight_WK[self.place] @ reward_K) if self.objective is None else reward_K[self.objective]
        return self._show(observation), float(earned), terminated, truncated, info | {"objectives": reward_K}

    def close(self) -> None:
        """Close the world."""
        self.world.close()


def weighted(
    *, world: WorldFunction, weights: list[list[float]], weight: Number | None = None, objective: Number | None = None
) -> Weighted:
    """Return a world with a vector of rewards as one with their weighted sum (the interface is MO-Gymnasium's).

    Each episode draws one of `weights`, or has that of number `weight`; with `objective` the reward is that objective
    alone, so that what the policy of each weight earns of each can be measured.
    """
    weight_WK = np.array(weights if len({len(row) for row in weights}) == 1 else [[]], float)
    if not weight_WK.size:
        raise StepError("env weighted: `weights` must be rows of a number for each objective")
    for name, number, count in (("weight", weight, len(weight_WK)), ("objective", objective, weight_WK.shape[1])):
        if number is not None and number >= count:
            raise StepError(f"env weighted: there is no {name} {number}, the last is {count - 1}")
    return Weighted(world(), weight_WK, weight, objective)
