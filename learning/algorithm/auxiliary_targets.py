"""Targets that auxiliary models are trained to predict, at every sampled token (T,); NaN at tokens without a target.

A model with one value per completion takes the target of the last token. Rewards arrive after the last token.
Shapes: P paths, T sampled tokens.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.columns import locate_in_path
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat

Share = Annotated[float, Field(ge=0, le=1)]


def outcome(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    path_T: Tensor,
    *,
    of: str | None = None,
    at_least: float | None = None,
) -> Tensor:
    """Reward of the completion (or its raw score `of`) at every token; with `at_least`, 1 or 0 by that threshold.

    This trains process rewards from outcomes alone: with `head: token` by regression on every prefix (as
    Math-Shepherd's hard labels), with `head: likelihood` and the loss `logistic` as in implicit process rewards.
    """
    earned_P = _read_scores(reward_P, scores_P, of, "outcome")
    if at_least is not None:
        earned_P = (earned_P >= at_least).to(earned_P).where(earned_P.isfinite(), torch.nan)
    return earned_P[path_T]


def monte_carlo(
    reward_P: Tensor, scores_P: Mapping[str, Tensor], path_T: Tensor, *, of: str | None = None, gamma: Share = 1.0
) -> Tensor:
    """Discounted reward γ^k·r, k tokens before the completion's last; `of` names a raw score instead of the reward."""
    return _read_scores(reward_P, scores_P, of, "monte_carlo")[path_T] * gamma ** locate_in_path(path_T)[1].double()


def temporal_difference(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    path_T: Tensor,
    next_T: Tensor,
    *,
    of: str | None = None,
    gamma: Share = 1.0,
) -> Tensor:
    """r + γ·V(s') of the target network; with `head: action` r + γ·max Q(s', ·) (DQN, Mnih et al. 2015)."""
    return _place_rewards(reward_P, scores_P, path_T, of, "temporal_difference") + gamma * next_T


def mean_action(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    path_T: Tensor,
    next_mean_T: Tensor,
    *,
    of: str | None = None,
    gamma: Share = 1.0,
) -> Tensor:
    """r + γ·mean Q(s', ·) of the target network: Q of the uniformly random policy (ROVER, He et al. 2025)."""
    return _place_rewards(reward_P, scores_P, path_T, of, "mean_action") + gamma * next_mean_T


def progress(path_T: Tensor, truncated_T: Tensor) -> Tensor:
    """Share of the completion before each token, 0 at the first; NaN for truncated completions."""
    before_T, after_T = locate_in_path(path_T)
    share_T = before_T.double() / (before_T + after_T + 1)
    return share_T.where(~truncated_T.bool(), torch.nan)


def remaining(path_T: Tensor, truncated_T: Tensor, *, unit: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """Remaining tokens, this one included, in units of `unit` tokens; NaN for truncated completions."""
    left_T = (locate_in_path(path_T)[1].double() + 1) / unit
    return left_T.where(~truncated_T.bool(), torch.nan)


def advantages(advantage_T: Tensor, *, scale: ScheduledFloat = 1.0) -> Tensor:
    """The policy's advantages, times `scale`."""
    return scale * advantage_T.double()


def _place_rewards(
    reward_P: Tensor, scores_P: Mapping[str, Tensor], path_T: Tensor, of: str | None, target: str
) -> Tensor:
    """Return the reward that arrives right after each token (T,): that of the completion at its last token, else 0."""
    last_T = locate_in_path(path_T)[1] == 0
    earned_T = _read_scores(reward_P, scores_P, of, target)[path_T]
    return earned_T.where(last_T, torch.zeros_like(earned_T))


def _read_scores(reward_P: Tensor, scores_P: Mapping[str, Tensor], of: str | None, target: str) -> Tensor:
    """Return the raw score `of` of each completion, or the reward; raise StepError if there is no such score."""
    if of is None:
        return reward_P.double()
    if of not in scores_P:
        raise StepError(f"target {target}: no reward {of!r} in this stage; it has: {', '.join(scores_P)}")
    return scores_P[of].double()
