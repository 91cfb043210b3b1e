"""What an auxiliary is to predict, at every sampled token (T,); NaN at tokens that say nothing.

An auxiliary with one value for a completion takes the target of its last token. Rewards come after the last token.
Shapes: P paths, T sampled tokens.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.columns import place
from schemas.errors import StepError
from schemas.schedules import ScheduledFloat

Share = Annotated[float, Field(ge=0, le=1)]


def outcome(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    path_T: Tensor,
    *,
    of: str | None = None,
    at_least: float | None = None,
) -> Tensor:
    """What the completion earned, at every token: the reward, or the raw score `of`; with `at_least` 1 or 0.

    A process reward learnt from outcomes alone: with `head: token` by regression on every prefix (Math-Shepherd's hard
    labels are of this kind), with `head: likelihood` and the loss `logistic` as in implicit process rewards.
    """
    earned_P = _earned(reward_P, scores_P, of, "outcome")
    if at_least is not None:
        earned_P = (earned_P >= at_least).to(earned_P).where(earned_P.isfinite(), torch.nan)
    return earned_P[path_T]


def monte_carlo(
    reward_P: Tensor, scores_P: Mapping[str, Tensor], path_T: Tensor, *, of: str | None = None, gamma: Share = 1.0
) -> Tensor:
    """γ^k · what the completion earned, k tokens before its last one; `of` names a raw score instead of the reward."""
    return _earned(reward_P, scores_P, of, "monte_carlo")[path_T] * gamma ** place(path_T)[1].double()


def temporal_difference(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    path_T: Tensor,
    next_T: Tensor,
    *,
    of: str | None = None,
    gamma: Share = 1.0,
) -> Tensor:
    """r + γ·V(s') of the slow copy; with `head: action` r + γ·max Q(s', ·) (Watkins & Dayan 1992, Mnih et al. 2015)."""
    return _rewards(reward_P, scores_P, path_T, of, "temporal_difference") + gamma * next_T


def mean_action(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    path_T: Tensor,
    next_mean_T: Tensor,
    *,
    of: str | None = None,
    gamma: Share = 1.0,
) -> Tensor:
    """r + γ·mean Q(s', ·) of the slow copy: values of a uniformly random policy's actions (ROVER, He et al. 2025)."""
    return _rewards(reward_P, scores_P, path_T, of, "mean_action") + gamma * next_mean_T


def progress(path_T: Tensor, truncated_T: Tensor) -> Tensor:
    """Share of the way to the end before each token: 0 at the first; nothing is known of completions that were cut."""
    before_T, after_T = place(path_T)
    share_T = before_T.double() / (before_T + after_T + 1)
    return share_T.where(~truncated_T.bool(), torch.nan)


def remaining(path_T: Tensor, truncated_T: Tensor, *, unit: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """Tokens still to come, this one included, in units of `unit` tokens; nothing is known of what was cut."""
    left_T = (place(path_T)[1].double() + 1) / unit
    return left_T.where(~truncated_T.bool(), torch.nan)


def advantages(advantage_T: Tensor, *, scale: ScheduledFloat = 1.0) -> Tensor:
    """The policy's advantages, times `scale`: what a token is worth beyond its state."""
    return scale * advantage_T.double()


def _rewards(reward_P: Tensor, scores_P: Mapping[str, Tensor], path_T: Tensor, of: str | None, asker: str) -> Tensor:
    """What is earned right after each token (T,)."""
    last_T = place(path_T)[1] == 0
    earned_T = _earned(reward_P, scores_P, of, asker)[path_T]
    return earned_T.where(last_T, torch.zeros_like(earned_T))


def _earned(reward_P: Tensor, scores_P: Mapping[str, Tensor], of: str | None, asker: str) -> Tensor:
    if of is None:
        return reward_P.double()
    if of not in scores_P:
        raise StepError(f"target {asker}: no reward {of!r} in this stage; it has: {', '.join(scores_P)}")
    return scores_P[of].double()
