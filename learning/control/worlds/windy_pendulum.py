"""A pendulum that stands in a wind, whose torques act late, with a limit on its angle. Shapes: N worlds, O numbers."""

from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
SECONDS, FASTEST = 0.05, 8.0
GRAVITY, TORQUE = 3.0, 4.0
"""Accelerations: of an angle of 90 degrees by gravity, and of a torque of 1."""


class WindyPendulum(gymnasium.Env):
    """Keeps an angle near 0, upright; observations are its cosine and sine, the velocity, and the present wind.

    The torque of a step acts `delay` steps later. The wind is drawn for the whole episode at its start, so that no
    action changes it. A step after which the angle is beyond the limit is flagged (`violated`) and costs `cost`.
    """

    def __init__(self, delay: int, wind: float, widest: float, cost: float, limit: int, pays: str) -> None:
        self.delay, self.wind, self.widest, self.cost, self.limit = delay, wind, widest, cost, limit
        self.pays = pays
        high = np.array([1.0, 1.0, FASTEST, np.inf], np.float32)
        self.observation_space = gymnasium.spaces.Box(-high, high, (4,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def observe(self) -> np.ndarray:
        """Return what is seen: torques that are still to act are not."""
        seen = [np.cos(self.angle), np.sin(self.angle), self.speed, self.winds[self.steps]]
        return np.array(seen, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin near the top with no torque on its way, and draw the winds of the episode."""
        super().reset(seed=seed)
        self.angle, self.speed = (float(x) for x in self.np_random.uniform(-0.2, 0.2, 2))
        self.steps, self.waiting = 0, [0.0] * self.delay
        self.winds = np.zeros(self.limit + 1)
        for step, gust in enumerate(self.np_random.normal(size=self.limit)):
            self.winds[step + 1] = 0.9 * self.winds[step] + self.wind * gust
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Let the torque act that was given `delay` steps ago."""
        self.waiting.append(float(action[0]))
        torque = self.waiting.pop(0)
        pull = GRAVITY * np.sin(self.angle) + TORQUE * torque + self.winds[self.steps]
        self.speed = float(np.clip(self.speed + SECONDS * pull, -FASTEST, FASTEST))
        turned = self.angle + SECONDS * self.speed
        self.angle = float((turned + np.pi) % (2 * np.pi) - np.pi)
        self.steps += 1
        violated = abs(self.angle) > self.widest
        cost = self.cost if violated else 0.0
        earned = -(self.angle**2 + 0.1 * self.speed**2 + 0.01 * torque**2) - cost
        reward = float(violated) if self.pays == "violations" else earned
        return self.observe(), reward, False, self.steps >= self.limit, {"violated": violated, "cost": cost}


def windy_pendulum(
    *,
    delay: Annotated[int, Field(ge=0)] = 3,
    wind: Annotated[float, Field(ge=0)] = 0.3,
    widest: Annotated[float, Field(gt=0)] = 0.5,
    cost: Annotated[float, Field(ge=0)] = 1.0,
    limit: Annotated[int, Field(ge=1)] = 100,
    pays: Literal["reward", "violations"] = "reward",
) -> gymnasium.Env:
    """Return an upright pendulum in a wind, whose torques act `delay` steps late.

    `pays: violations` pays 1 for every step with the angle beyond `widest`, to count them in an evaluation.
    """
    return WindyPendulum(delay, wind, widest, cost, limit, pays)


def steady(
    observation_NO: np.ndarray, spaces: Spaces, *, gain: float = 1.2, damping: float = 0.5, most: float = 1.0
) -> np.ndarray:
    """Hold a windy pendulum up: a torque against its angle and velocity, of `most` of what is possible at the most."""
    cosine_N, sine_N, speed_N, _ = observation_NO.T
    torque_N = -(gain * np.arctan2(sine_N, cosine_N) + damping * speed_N)
    bound = most * np.array(spaces.high)
    return np.clip(torque_N[:, None], -bound, bound).astype(np.float32)
