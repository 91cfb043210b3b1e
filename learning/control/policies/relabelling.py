"""Changes to own steps before they are kept: a function returns new columns by name. Shapes: N worlds."""

from dataclasses import replace
from typing import Any

import numpy as np

from learning.control.policies.experts import ActingFunction
from learning.control.policies.rules import RuleFunction
from learning.control.stepping.transitions import read_transitions, write_transitions


def label_by_expert(observation_NO: np.ndarray, *, expert: ActingFunction) -> dict[str, np.ndarray]:
    """Keep the expert's action at every observation that the policy reaches, in place of its own (Ross et al. 2011).

    For losses that clone: reward and next observation stay those of the policy's action.
    """
    return {"action": expert(observation_NO=observation_NO)}


def find_onsets(before_N: np.ndarray, after_N: np.ndarray) -> np.ndarray:
    """Return which steps lead into an intervention: the rule holds after them, and did not before."""
    return after_N & ~before_N


def penalise_onsets(
    observation_NO: np.ndarray, next_observation_NO: np.ndarray, *, when: RuleFunction
) -> dict[str, np.ndarray]:
    """Replace rewards by −1 for steps that lead into an intervention, and 0 for all others (Luo et al. 2024)."""
    before_N, after_N = (when(observation_NO=shown) for shown in (observation_NO, next_observation_NO))
    return {"reward": -find_onsets(before_N, after_N).astype(float)}


def label_onsets(context: Any, *, when: RuleFunction) -> dict[str, float]:
    """Write the input `transitions` with the rewards of `penalise_onsets`; return the number of onsets."""
    given = read_transitions(context.input("transitions"))
    before_T, after_T = (when(observation_NO=shown) for shown in (given.observation, given.next_observation))
    reward_T = -find_onsets(before_T, after_T).astype(float)
    write_transitions(context.output("transitions"), replace(given, reward=reward_T))
    return {"steps": len(given), "onsets": float(-reward_T.sum())}
