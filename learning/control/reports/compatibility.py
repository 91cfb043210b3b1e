"""How well demonstrations fit a policy that was cloned from others: an ensemble's error, where the ensemble is sure.

Shapes: M members, N steps or worlds, A numbers of an action.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.control.policies.experts import ActingFunction
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import (
    Transitions,
    join_transitions,
    read_transitions,
    select_episodes,
    write_transitions,
)
from schemas.errors import StepError
from schemas.references import ControlPolicyRef

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


def measure_compatibility(
    error_N: np.ndarray, spread_N: np.ndarray, *, error_limit: float, spread_limit: float
) -> np.ndarray:
    """Return 1 − min(error / limit, 1) where the ensemble is sure, and 1 where its spread reaches the limit.

    What is new to the ensemble is compatible, whatever is done there (Gandhi et al. 2022).
    """
    return np.where(spread_N < spread_limit, 1 - np.minimum(error_N / error_limit, 1), 1.0)


def compare_actions(action_MNA: np.ndarray, taken_NA: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean squared error of the members' mean action, and the mean deviation of the members, each (N,)."""
    mean_NA = action_MNA.mean(0)
    return np.square(mean_NA - taken_NA).mean(1), action_MNA.std(0).mean(1)


def load_members(folders: Sequence[Path]) -> list[ControlPolicy]:
    """Return the policies of an ensemble. Raise StepError for fewer than two, or for choices."""
    members = [load_control_policy(folder) for folder in folders]
    if len(members) < 2 or members[0].spaces.is_discrete:
        raise StepError(
            f"compatibility needs two policies or more, whose actions are numbers; there are {len(members)}"
        )
    return members


def act_together(members: Sequence[ControlPolicy], observation_NO: np.ndarray) -> np.ndarray:
    """Return the actions of all members (M, N, A)."""
    return np.stack([member.act(np.array(observation_NO), explore=False) for member in members])


def judge_episodes(
    members: Sequence[ControlPolicy], given: Transitions, *, error_limit: float, spread_limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the episodes, and the mean compatibility of each one's steps."""
    error_N, spread_N = compare_actions(act_together(members, given.observation), given.action)
    fits_N = measure_compatibility(error_N, spread_N, error_limit=error_limit, spread_limit=spread_limit)
    numbers, place_N = np.unique(given.episode, return_inverse=True)
    return numbers, np.bincount(place_N, weights=fits_N) / np.bincount(place_N)


def keep_compatible(
    context: Any, *, error_limit: Positive = 0.5, spread_limit: Positive = 0.1, least: Share = 0.8
) -> dict[str, float]:
    """Write the episodes whose mean compatibility is `least` or more, and as many drawn at random.

    Inputs whose names begin with `member` are the ensemble, the others demonstrations. Outputs are `kept` and
    `random`. Raise StepError if nothing is compatible.
    """
    names = [name for name in context.inputs if not name.startswith("inputs.")]
    members = load_members([context.input(name) for name in names if name.startswith("member")])
    parts = {name: read_transitions(context.input(name)) for name in names if not name.startswith("member")}
    metrics: dict[str, float] = {}
    fits: list[np.ndarray] = []
    for name, given in parts.items():
        members[0].spaces.require(given.spaces, name)
        _, of_part = judge_episodes(members, given, error_limit=error_limit, spread_limit=spread_limit)
        metrics |= {f"compatibility.{name}": float(of_part.mean()), f"kept.{name}": float((of_part >= least).sum())}
        fits.append(of_part)
    offered, kept_E = join_transitions([*parts.values()]), np.concatenate(fits) >= least
    if not kept_E.any():
        raise StepError("compatibility: no demonstration is compatible; lower `least`, or raise `error_limit`")
    drawn_E = np.zeros(len(kept_E), bool)
    drawn_E[np.random.default_rng(context.seed).choice(len(kept_E), int(kept_E.sum()), replace=False)] = True
    numbers = np.unique(offered.episode)
    write_transitions(context.output("kept"), select_episodes(offered, numbers[kept_E]))
    write_transitions(context.output("random"), select_episodes(offered, numbers[drawn_E]))
    return {**metrics, "episodes": len(kept_E), "kept": float(kept_E.sum())}


def heed_feedback(
    observation_NO: np.ndarray,
    spaces: Spaces,
    *,
    operator: ActingFunction,
    members: list[ControlPolicyRef],
    error_limit: Positive = 0.5,
    spread_limit: Positive = 0.1,
    least: Share = 0.5,
) -> np.ndarray:
    """Act as an operator who sees at every step whether it is compatible, and else acts as the ensemble does."""
    own_NA = operator(observation_NO=observation_NO, spaces=spaces)
    action_MNA = act_together(load_members([Path(member) for member in members]), observation_NO)
    error_N, spread_N = compare_actions(action_MNA, own_NA)
    fits_N = measure_compatibility(error_N, spread_N, error_limit=error_limit, spread_limit=spread_limit)
    return np.where(fits_N[:, None] < least, action_MNA.mean(0), own_NA).astype(np.float32)
