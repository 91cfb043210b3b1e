"""Advantages of single tokens, changed by what is known of the token: its entropy, its likelihood, where it comes from.

Modulations are applied in the order of the recipe's list, once per iteration, over all of its tokens. What must follow
the weights while they are trained is a part of a surrogate instead.
Shapes: T sampled tokens, P paths; nothing here carries a gradient.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.algorithm.token_masks.masks import Source
from learning.algorithm.token_masks.masks import sources as _of_sources
from learning.batch.keyed import totals
from schemas.schedules import ScheduledFloat


def by_sign(advantage_T: Tensor, *, positive: ScheduledFloat = 1.0, negative: ScheduledFloat = 1.0) -> Tensor:
    """One factor for advantages above 0, another for those below (Zhu et al. 2025, weighted reinforcement)."""
    return torch.where(advantage_T > 0, advantage_T * positive, advantage_T * negative)


def by_source(
    advantage_T: Tensor, source_T: Tensor, *, of: Annotated[list[Source], Field(min_length=1)], factor: ScheduledFloat
) -> Tensor:
    """A factor for the tokens of completions from the named sources."""
    return advantage_T.where(~_of_sources(source_T, keep=of), advantage_T * factor)


def focal(advantage_T: Tensor, lp_prox_T: Tensor, *, gamma: ScheduledFloat = 1.0) -> Tensor:
    """A·(1 − p)^γ: what the policy would say anyway counts less (after Lin et al. 2017); p before the update."""
    return advantage_T * (1 - lp_prox_T.exp()).clamp(min=0) ** gamma


def entropy_bonus(
    advantage_T: Tensor,
    entropy_behav_T: Tensor,
    *,
    alpha: ScheduledFloat = 0.4,
    kappa: Annotated[float, Field(gt=1)] = 2.0,
) -> Tensor:
    """A + min(α·H, |A|/κ): uncertain tokens gain, and no sign turns (Cheng et al. 2025)."""
    return advantage_T + (alpha * entropy_behav_T).minimum(advantage_T.abs() / kappa)


def novelty(
    advantage_T: Tensor,
    lp_behav_T: Tensor,
    path_T: Tensor,
    group_T: Tensor,
    reward_T: Tensor,
    *,
    weight: ScheduledFloat = 0.1,
    kappa: Annotated[float, Field(ge=0)] = 1.0,
    above: float = 0.0,
) -> Tensor:
    """Correct completions gain by how unlikely they are beside the other correct ones of their group (after XRPO).

    s is the mean log-probability of a completion's tokens when it was sampled. One whose reward is above `above` gains
    weight · clip(mean s of the group's correct ones − s, 0, κ); wrong ones keep what they have.
    """
    index_T = path_T.unique(return_inverse=True)[1]
    first_P = _first(index_T)
    right_P = reward_T[first_P] > above
    score_P = totals(lp_behav_T, index_T) / index_T.bincount()
    group_P = group_T[first_P].unique(return_inverse=True)[1]
    counts = totals(right_P.to(score_P.dtype), group_P).clamp(min=1)
    usual_P = (totals(score_P.where(right_P, 0.0), group_P) / counts)[group_P]
    gain_P = (usual_P - score_P).clamp(0, kappa).where(right_P, torch.zeros_like(score_P))
    return advantage_T + weight * gain_P[index_T]


def fading(advantage_T: Tensor, place_T: Tensor, *, gamma: Annotated[float, Field(gt=0, le=1)]) -> Tensor:
    """γ^t: later tokens of a completion count less."""
    return advantage_T * gamma**place_T


def duration(
    advantage_T: Tensor, seconds_T: Tensor, *, unit: Annotated[float, Field(gt=0)] = 1.0, least: float = 0.0
) -> Tensor:
    """A · Δt / `unit`: an action counts as long as it took (Yang et al. 2025, duration-aware gradient).

    In a given time many short actions end and few long ones; so weighted, both move the policy as much as the time that
    they have taken. Δt is the answer's to the token's turn, at least `least`: an action that took no time at all would
    not count.
    """
    return advantage_T * (seconds_T.to(advantage_T) / unit).clamp(min=least / unit)


def balanced(advantage_T: Tensor) -> Tensor:
    """Negative advantages scaled so that all of them sum to as much as the positive ones, where both exist."""
    gained, lost = advantage_T.clamp(min=0).sum(), -advantage_T.clamp(max=0).sum()
    if not gained or not lost:
        return advantage_T
    return advantage_T.where(advantage_T > 0, advantage_T * (gained / lost))


def _first(index_T: Tensor) -> Tensor:
    """Place of the first token of each path."""
    order = index_T.argsort(stable=True)
    counts = index_T.bincount()
    return order[counts.cumsum(0) - counts]
