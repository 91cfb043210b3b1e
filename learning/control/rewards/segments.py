"""Rewards of whole pieces of episodes, by comparing them: win rates in self-play, and scores of a reward model.

Shapes: K segments, T steps of one, O numbers of an observation, D features.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions
from learning.control.stepping.worlds import Steps
from learning.lookup import Bound, Inner
from schemas.control import SegmentDuelUse
from schemas.errors import StepError
from schemas.references import DirectoryRef

if TYPE_CHECKING:
    SegmentDuelFunction = Inner
else:
    SegmentDuelFunction = SegmentDuelUse
"""Option of a function: what compares two segments, which it gets bound."""
FILE = "scores.json"


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one episode of one world: a whole episode, or what a rollout has of it."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray


def cut_segments(rollout: Sequence[Steps]) -> tuple[list[Segment], np.ndarray]:
    """Return the segments of a rollout, and the number of that which each step of each world (S, N) belongs to."""
    ended_SN = np.stack([steps.terminated | steps.truncated for steps in rollout])
    before_SN = np.concatenate([np.zeros((1, ended_SN.shape[1]), int), ended_SN[:-1].cumsum(0)])
    first_N = np.concatenate([[0], (before_SN[-1] + 1).cumsum()[:-1]])
    place_SN = before_SN + first_N
    columns = {name: np.stack([getattr(steps, name) for steps in rollout]) for name in Segment.__annotations__}
    numbers = range(int(place_SN.max()) + 1)
    return [Segment(**{name: column[place_SN == k] for name, column in columns.items()}) for k in numbers], place_SN


def share_rewards(rollout: Sequence[Steps], reward_K: np.ndarray, place_SN: np.ndarray) -> list[Steps]:
    """Return the steps with the rewards of their segments, shared out evenly over the steps of each."""
    length_K = np.bincount(place_SN.reshape(-1), minlength=len(reward_K))
    share_SN = (reward_K / length_K)[place_SN]
    return [replace(steps, reward=share_N) for steps, share_N in zip(rollout, share_SN, strict=True)]


def reward_segments(
    rollout: Sequence[Steps], reward: Bound, step: int, spaces: Spaces, rng: np.random.Generator
) -> list[Steps]:
    """Return the rollout with rewards of its segments. Raise StepError unless there is a finite one of each."""
    segments, place_SN = cut_segments(rollout)
    reward_K = np.asarray(reward.ask(step, {"segments": segments, "spaces": spaces, "rng": rng, "step": step}), float)
    if reward_K.shape != (len(segments),) or not np.isfinite(reward_K).all():
        raise StepError(f"segment_reward {reward.name}: it must give {len(segments)} finite numbers")
    return share_rewards(rollout, reward_K, place_SN)


def compare(segments: Sequence[Segment], by: Inner) -> np.ndarray:
    """Return P(i is preferred to j) (K, K): each pair is rated once, and a segment draws against itself."""
    wins_KK = np.full((len(segments), len(segments)), 0.5)
    for i, first in enumerate(segments):
        for j in range(i + 1, len(segments)):
            rated = float(by(first=first, second=segments[j]))
            if not 0 <= rated <= 1:
                raise StepError(f"duel {by.bound.name}: {rated} is no probability")
            wins_KK[i, j], wins_KK[j, i] = rated, 1 - rated
    return wins_KK


def win_rate(segments: Sequence[Segment], *, by: SegmentDuelFunction) -> np.ndarray:
    """Return the share of the other segments that each wins against: self-play (SPO, Swamy et al. 2024).

    The rates of K segments add up to K / 2. No reward model, so that preferences need not be transitive or a sum of
    steps.
    """
    if len(segments) < 2:
        raise StepError("segment_reward win_rate: a rollout needs two segments: raise `num_envs` or `rollout_steps`")
    return (compare(segments, by).sum(1) - 0.5) / (len(segments) - 1)


def describe_segments(segments: Sequence[Segment], spaces: Spaces) -> np.ndarray:
    """Return features (K, D): sums over steps of the observation by choice, or of observation and action and 1."""

    def describe(one: Segment) -> np.ndarray:
        if spaces.is_discrete:
            return np.einsum("to,ta->oa", one.observation, np.eye(spaces.actions)[one.action]).reshape(-1)
        return np.concatenate([one.observation, one.action, np.ones((len(one.reward), 1))], 1).sum(0)

    return np.stack([describe(one) for one in segments])


def fit_bradley_terry(feature_KD: np.ndarray, wins_KK: np.ndarray, ridge: float) -> np.ndarray:
    """Return weights (D,) of the likeliest scores: P(i beats j) = σ(w · (f_i − f_j)), less ridge / 2 · ‖w‖²."""
    first_M, second_M = np.triu_indices(len(feature_KD), 1)
    apart_MD, target_M = feature_KD[first_M] - feature_KD[second_M], wins_KK[first_M, second_M]
    weight_D = np.zeros(feature_KD.shape[1])
    for _ in range(100):
        chance_M = 1 / (1 + np.exp(-apart_MD @ weight_D))
        slope_D = apart_MD.T @ (target_M - chance_M) - ridge * weight_D
        curvature_DD = (apart_MD * (chance_M * (1 - chance_M))[:, None]).T @ apart_MD + ridge * np.eye(len(weight_D))
        step_D = np.linalg.solve(curvature_DD, slope_D)
        weight_D = weight_D + step_D / max(1.0, float(np.abs(step_D).max()))
        if np.abs(step_D).max() < 1e-9:
            break
    return weight_D


def fit_scores(
    context: Any,
    *,
    by: SegmentDuelFunction,
    segments: Annotated[int, Field(ge=2)] = 256,
    ridge: Annotated[float, Field(gt=0)] = 1.0,
) -> dict[str, float]:
    """Fit a reward model, linear in the steps, to all duels of the first episodes of the input `transitions`.

    It is Bradley-Terry's: every step has a score of its own, whatever it is compared with.
    """
    given = read_transitions(context.input("transitions"))
    places = np.split(np.arange(len(given)), np.flatnonzero(np.diff(given.episode)) + 1)[:segments]
    pieces = [Segment(given.observation[p], given.action[p], given.reward[p]) for p in places]
    if len(pieces) < 2:
        raise StepError("fit_scores: one episode cannot be compared: collect more")
    feature_KD, wins_KK = describe_segments(pieces, given.spaces), compare(pieces, by)
    weight_D = fit_bradley_terry(feature_KD, wins_KK, ridge)
    (context.output("result") / FILE).write_text(json.dumps({"weights": weight_D.tolist()}) + "\n")
    score_K = feature_KD @ weight_D
    agrees = np.sign(score_K[:, None] - score_K) == np.sign(wins_KK - 0.5)
    return {"segments": len(pieces), "duels": len(pieces) * (len(pieces) - 1) / 2, "agreement": float(agrees.mean())}


def learned_score(segments: Sequence[Segment], spaces: Spaces, *, model: DirectoryRef) -> np.ndarray:
    """Return the score of each segment by a reward model of `fit_scores`."""
    try:
        weight_D = np.array(json.loads((Path(model) / FILE).read_text())["weights"], float)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"model: {Path(model).name} has no {FILE}: name the output of `fit_scores`") from error
    feature_KD = describe_segments(segments, spaces)
    if feature_KD.shape[1] != len(weight_D):
        raise StepError(f"model: it scores {len(weight_D)} features, and the world's steps have {feature_KD.shape[1]}")
    return feature_KD @ weight_D
