"""A point in the plane that is pushed about, and how near it ends to a place.

Shapes: N worlds, K steps of an episode.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces

Steps = Annotated[int, Field(ge=1)]
Place = tuple[float, float]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
STEP, WIDEST = 0.2, 2.0


class Point(gymnasium.Env):
    """Begins near a start; a step moves the point by 0.2 times the action and earns minus its distance to a goal."""

    def __init__(self, goal: Place, start: Place, limit: int) -> None:
        self.goal, self.start, self.limit = np.array(goal, np.float32), np.array(start, np.float32), limit
        self.observation_space = gymnasium.spaces.Box(-WIDEST, WIDEST, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin at most 0.1 from the start, in each direction."""
        super().reset(seed=seed)
        self.place, self.steps = self.start + self.np_random.uniform(-0.1, 0.1, 2).astype(np.float32), 0
        return self.place.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move; the plane ends at 2."""
        self.place = np.clip(self.place + STEP * np.asarray(action, np.float32), -WIDEST, WIDEST)
        self.steps += 1
        return self.place.copy(), -float(np.linalg.norm(self.place - self.goal)), False, self.steps >= self.limit, {}


def point(
    *, x: float = 1.0, y: float = 0.0, from_x: float = 0.0, from_y: float = 0.0, limit: Steps = 12
) -> gymnasium.Env:
    """Return a point that begins near (from_x, from_y), by default the middle, and is rewarded near (x, y)."""
    return Point((x, y), (from_x, from_y), limit)


def toward(observation_NO: np.ndarray, spaces: Spaces, *, x: float = 1.0, y: float = 0.0) -> np.ndarray:
    """Push the point toward (x, y), at most half of what is possible."""
    away_NO = (np.array([x, y]) - observation_NO) / STEP
    return (np.clip(away_NO, -1, 1) * np.array(spaces.high) / 2).astype(np.float32)


def along_rows(
    observation_NO: np.ndarray, spaces: Spaces, *, goals: Annotated[Sequence[Place], Field(min_length=1)]
) -> np.ndarray:
    """Push the point as `toward` does, to the one of several goals that is nearest in height."""
    goal_G2 = np.array(goals)
    nearest_N = np.abs(observation_NO[:, 1:] - goal_G2[None, :, 1]).argmin(1)
    away_NO = (goal_G2[nearest_N] - observation_NO) / STEP
    return (np.clip(away_NO, -1, 1) * np.array(spaces.high) / 2).astype(np.float32)


def ends_near(observation_KO: np.ndarray, *, x: float = 1.0, y: float = 0.0) -> float:
    """Rate an episode by how near its last observation is to (x, y)."""
    return -float(np.linalg.norm(observation_KO[-1] - np.array([x, y])))
