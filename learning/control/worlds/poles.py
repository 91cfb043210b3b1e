"""A pole on a cart whose length and force are the task of an episode."""

from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from pydantic import Field

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""


class ParametricPole(gymnasium.Env):
    """Gymnasium's pole on a cart; a task is two numbers from 0 to 1, drawn evenly if none is given.

    The first sets half the pole's length, from 0.05 to 1.05, the second the force, from 2 to 14. Each step pays 1.
    """

    def __init__(self, limit: int) -> None:
        self.pole, self.limit = CartPoleEnv(), limit
        self.observation_space, self.action_space = self.pole.observation_space, self.pole.action_space
        self.task_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin with the pole of a task."""
        super().reset(seed=seed)
        self.task = np.array(options["task"]) if options else self.np_random.uniform(size=2)
        self.pole.length, self.pole.force_mag = 0.05 + float(self.task[0]), 2.0 + 12.0 * float(self.task[1])
        self.pole.polemass_length = self.pole.masspole * self.pole.length
        self.steps = 0
        return self.pole.reset(seed=seed)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Push the cart."""
        shown, _, fell, _, info = self.pole.step(action)
        self.steps += 1
        return shown, 1.0, fell, self.steps >= self.limit and not fell, info


def parametric_pole(*, limit: Annotated[int, Field(ge=1)] = 200) -> gymnasium.Env:
    """Return a pole on a cart whose length and force are tasks; the shortest and the weakest are the hardest."""
    return ParametricPole(limit)
