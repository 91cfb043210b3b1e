"""Changes to the actions of a policy while steps are collected. Shapes: N worlds; actions (N,) or (N, A)."""

import numpy as np

from learning.control.stepping.spaces import Spaces
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat


def gaussian(
    action_N: np.ndarray, spaces: Spaces, rng: np.random.Generator, *, std: ScheduledFloat = 0.1
) -> np.ndarray:
    """Add Gaussian noise, `std` in halves of the box's width; the world clips the sum."""
    if spaces.is_discrete:
        raise StepError("exploration gaussian needs numbers in a box; for choices use epsilon_greedy")
    half = (np.array(spaces.high) - np.array(spaces.low)) / 2
    noisy = action_N + rng.normal(size=action_N.shape) * half * std
    return np.clip(noisy, spaces.low, spaces.high).astype(np.float32)


def epsilon_greedy(
    action_N: np.ndarray, spaces: Spaces, rng: np.random.Generator, *, epsilon: ScheduledFloat = 0.1
) -> np.ndarray:
    """Replace actions, those of each agent by themselves, by random choices with probability `epsilon`."""
    if not spaces.is_discrete:
        raise StepError("exploration epsilon_greedy needs choices; for numbers in a box use gaussian")
    replaced_N = rng.random(action_N.shape) < epsilon
    return np.where(replaced_N, rng.integers(spaces.actions, size=action_N.shape), action_N)
