"""A point that reaches a place behind a round pillar, and operators who pass it on one side. N worlds, O numbers."""

from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
STEP, RADIUS, NEAR, WIDEST = 0.15, 0.35, 0.2, 2.0
GOAL = np.array([0.0, 1.0])


class Pillar(gymnasium.Env):
    """Begins near a start and pays 1 at the goal; who touches the pillar in the middle ends with nothing."""

    def __init__(self, start: tuple[float, float], limit: int) -> None:
        self.start, self.limit = np.array(start), limit
        self.observation_space = gymnasium.spaces.Box(-WIDEST, WIDEST, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin at most 0.15 from the start, in each direction."""
        super().reset(seed=seed)
        self.place, self.steps = self.start + self.np_random.uniform(-0.15, 0.15, 2), 0
        return self.place.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move by 0.15 times the action."""
        self.place = np.clip(self.place + STEP * np.asarray(action, float), -WIDEST, WIDEST)
        self.steps += 1
        arrived = bool(np.linalg.norm(self.place - GOAL) < NEAR)
        ended = arrived or bool(np.linalg.norm(self.place) < RADIUS)
        return self.place.astype(np.float32), float(arrived), ended, self.steps >= self.limit and not ended, {}


def pillar(*, from_x: float = 0.0, from_y: float = -1.0, limit: Annotated[int, Field(ge=1)] = 40) -> gymnasium.Env:
    """Return a point that begins near (from_x, from_y), by default opposite the goal behind a pillar."""
    return Pillar((from_x, from_y), limit)


def pass_pillar(
    observation_NO: np.ndarray, spaces: Spaces, *, side: Literal["left", "right"] = "left", out: float = 0.8
) -> np.ndarray:
    """Go to the goal past a place beside the pillar, `out` from its middle, on one side."""
    beside = np.array([-out if side == "left" else out, 0.0])
    target_NO = np.where(observation_NO[:, 1:] < -0.05, beside, GOAL)
    away_NO = (target_NO - observation_NO) / STEP
    length_N1 = np.maximum(np.linalg.norm(away_NO, axis=1, keepdims=True), 1.0)
    return np.clip(away_NO / length_N1, spaces.low, spaces.high).astype(np.float32)


def come_from_aside(observation_NO: np.ndarray, spaces: Spaces) -> np.ndarray:
    """Go straight to the goal."""
    away_NO = (GOAL - observation_NO) / STEP
    length_N1 = np.maximum(np.linalg.norm(away_NO, axis=1, keepdims=True), 1.0)
    return np.clip(away_NO / length_N1, spaces.low, spaces.high).astype(np.float32)
