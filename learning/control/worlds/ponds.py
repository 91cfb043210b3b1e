"""A point in the plane with a pond that must not be entered and a wide goal behind it. Shapes: N worlds."""

from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
STEP, WIDEST, RADIUS, GOAL = 0.2, 1.5, 0.5, 0.9


class Pond(gymnasium.Env):
    """Begins on the left; the goal is on the right. Who enters the pond in the middle ends there.

    A step pays a tenth of its way to the right, and its share of 1 in the goal.
    """

    def __init__(self, limit: int, pays: str) -> None:
        self.limit, self.pays = limit, pays
        self.observation_space = gymnasium.spaces.Box(-WIDEST, WIDEST, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin near (−1, 0)."""
        super().reset(seed=seed)
        self.place, self.steps = np.array([-1.0, 0.0]) + self.np_random.uniform(-0.2, 0.2, 2), 0
        return self.place.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Move by 0.2 times the action."""
        before = self.place[0]
        self.place = np.clip(self.place + STEP * np.asarray(action, float), -WIDEST, WIDEST)
        self.steps += 1
        drowned = bool(np.linalg.norm(self.place) < RADIUS)
        earned = 0.1 * float(self.place[0] - before) + float(self.place[0] > GOAL) / self.limit
        reward = float(drowned) if self.pays == "violations" else earned
        return self.place.astype(np.float32), reward, drowned, self.steps >= self.limit and not drowned, {}


def pond(*, limit: Annotated[int, Field(ge=1)] = 30, pays: Literal["reward", "violations"] = "reward") -> gymnasium.Env:
    """Return a point with a pond between it and its goal; `pays: violations` pays 1 for entering the pond."""
    return Pond(limit, pays)
