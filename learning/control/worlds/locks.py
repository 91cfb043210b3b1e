"""Combination locks: worlds in which one sequence of choices, out of very many, pays. Shapes: N worlds, H steps."""

from functools import lru_cache
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

Steps = Annotated[int, Field(ge=1)]
Several = Annotated[int, Field(ge=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
STATES, SHUT = 3, 2
"""States of a step: two from which the lock can still be opened, and one from which it cannot."""


@lru_cache(maxsize=16)
def draw_combination(horizon: int, actions: int, number: int) -> np.ndarray:
    """Return the right choices (H, 2) of a lock: one for each step and each of the two open states."""
    return np.random.default_rng([horizon, actions, number]).integers(actions, size=(horizon, SHUT))


class Lock(gymnasium.Env):
    """`horizon` steps; the right choice leads to one of two open states, drawn evenly, a wrong one shuts the lock.

    The right choice at the last step earns 1, the one that shuts the lock earns `decoy`. The observation is the number
    of step and state.
    """

    def __init__(self, horizon: int, actions: int, number: int, decoy: float) -> None:
        self.horizon, self.decoy = horizon, decoy
        self.combination = draw_combination(horizon, actions, number)
        self.observation_space = gymnasium.spaces.Discrete(horizon * STATES)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin in an open state."""
        super().reset(seed=seed)
        self.steps, self.state = 0, int(self.np_random.integers(SHUT))
        return self.observe(), {}

    def observe(self) -> int:
        """Return the number of step and state."""
        return min(self.steps, self.horizon - 1) * STATES + self.state

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Turn the lock once."""
        earned, last = 0.0, self.steps + 1 == self.horizon
        if self.state != SHUT and action == self.combination[self.steps, self.state]:
            earned, self.state = float(last), int(self.np_random.integers(SHUT))
        elif self.state != SHUT:
            earned, self.state = self.decoy, SHUT
        self.steps += 1
        return self.observe(), earned, last, False, {}


def lock(*, horizon: Steps = 5, actions: Several = 3, number: int = 0, decoy: Share = 0.0) -> gymnasium.Env:
    """Return a combination lock, drawn by `number`; a choice that shuts it earns `decoy`, the whole combination 1."""
    return Lock(horizon, actions, number, decoy)


def open_lock(observation_NO: np.ndarray, *, horizon: Steps = 5, actions: Several = 3, number: int = 0) -> np.ndarray:
    """Turn `lock` with the same options as its combination says; when it is shut, choose 0."""
    combination = draw_combination(horizon, actions, number)
    step_N, state_N = np.divmod(observation_NO.argmax(1), STATES)
    return np.where(state_N == SHUT, 0, combination[step_N, np.minimum(state_N, SHUT - 1)])
