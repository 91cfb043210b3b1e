"""Further rewards of steps, which may help or mislead; what they are worth is learned (`blended_rewards`)."""

from collections.abc import Sequence

import numpy as np

from schemas.errors import StepError


def for_actions(action_N: np.ndarray, *, values: Sequence[float]) -> np.ndarray:
    """Give each choice its number, wherever it is made."""
    if action_N.max() >= len(values):
        raise StepError(f"heuristic for_actions: there is a choice {action_N.max()}, and {len(values)} values")
    return np.asarray(values, float)[action_N]


def in_states(observation_NO: np.ndarray, *, states: Sequence[int], value: float = 1.0) -> np.ndarray:
    """Give a number in some states, whatever is done there."""
    return value * np.isin(observation_NO.argmax(1), states)
