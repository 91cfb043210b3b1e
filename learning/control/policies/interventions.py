"""Experts that take over while a policy acts. Shapes: N worlds, O numbers of an observation; actions (N,) or (N, A)."""

import numpy as np

from learning.control.policies.experts import ActingFunction
from learning.control.policies.rules import RuleFunction
from schemas.number_schedules import ScheduledFloat


def mix_expert(
    action_N: np.ndarray, rng: np.random.Generator, *, expert: ActingFunction, share: ScheduledFloat = 0.5
) -> np.ndarray:
    """Take the expert's action with probability `share`, β of DAgger (Ross et al. 2011)."""
    return take_over(action_N, expert(), rng.random(len(action_N)) < share)


def intervene(action_N: np.ndarray, *, expert: ActingFunction, when: RuleFunction) -> np.ndarray:
    """Take the expert's action where a rule on the observation holds (Luo et al. 2024)."""
    return take_over(action_N, expert(), when())


def take_over(action_N: np.ndarray, of_expert_N: np.ndarray, taken_N: np.ndarray) -> np.ndarray:
    """Return the expert's actions where they are taken, the policy's elsewhere."""
    taken = taken_N.reshape(-1, *[1] * (action_N.ndim - 1))
    return np.where(taken, of_expert_N, action_N).astype(action_N.dtype)
