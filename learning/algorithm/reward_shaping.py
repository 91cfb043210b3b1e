"""Changes to rewards before they become advantages; the raw scores, which group filters read, do not change.

They are applied in the order of the recipe's list, each to the reward that the one before it returned. Lengths are
in sampled tokens. Shapes: P paths, T sampled tokens.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.algorithm.token_masks.masks import sources as _sources
from learning.batch.columns import get_auxiliary as _get_auxiliary
from learning.batch.columns import locate_in_path
from learning.samples.sample import Source
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat


def overlong(
    reward_P: Tensor,
    length_P: Tensor,
    *,
    max_length: Annotated[int, Field(ge=1)],
    cache: Annotated[int, Field(ge=1)],
    weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Soft penalty for long completions: 0 up to max_length − cache, −weight at max_length (DAPO, eq. 13).

    Raise StepError if `cache` is above `max_length`.
    """
    if cache > max_length:
        raise StepError(f"reward_shaping overlong: cache ({cache}) exceeds max_length ({max_length}); lower it")
    over_P = (length_P.to(reward_P.dtype) - (max_length - cache)) / cache
    return reward_P - weight * over_P.clamp(0, 1)


def truncated(reward_P: Tensor, truncated_P: Tensor, *, reward: ScheduledFloat = 0.0) -> Tensor:
    """Give completions that hit the length limit a fixed reward, whatever their scores."""
    return torch.where(truncated_P, torch.full_like(reward_P, float(reward)), reward_P)


def kl_in_reward(
    reward_P: Tensor, lp_behav_T: Tensor, lp_ref_T: Tensor, path_T: Tensor, *, beta: ScheduledFloat = 0.05
) -> Tensor:
    """KL penalty in the reward: r − β·Σ (log p − log p_ref) over sampled tokens (RLOO, Ahmadian et al. 2024)."""
    gap_T = (lp_behav_T - lp_ref_T).to(reward_P.dtype)
    return reward_P - beta * torch.zeros_like(reward_P).index_add(0, path_T, gap_T)


def bonus(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    *,
    of: str,
    where: str | None = None,
    at_least: float = 1.0,
    weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Add weight · the raw score `of`, only where the score `where` is at least `at_least` (null: everywhere).

    With a number schedule as `weight` the bonus fades in or out. Give the reward itself the weight 0 in `rewards`.
    """
    added_P = weight * _get_score(scores_P, of, "bonus")
    if where is not None:
        met_P = _get_score(scores_P, where, "bonus") >= at_least
        added_P = added_P.where(met_P, torch.zeros_like(added_P))
    return reward_P + added_P


def source_bonus(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    source_P: Tensor,
    *,
    of: Annotated[list[Source], Field(min_length=1)],
    where: str | None = None,
    at_least: float = 1.0,
    weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Add `weight` to right completions of the named sources (ICPO 2025).

    A completion is right if its raw score `where` (null: the first) is at least `at_least`. A number schedule as
    `weight` fades the bonus.
    """
    met_P = _get_score(scores_P, where or next(iter(scores_P)), "source_bonus") >= at_least
    added_P = torch.full_like(reward_P, float(weight)).where(_sources(source_P, keep=of) & met_P, 0.0)
    return reward_P + added_P


def from_tokens(
    reward_P: Tensor,
    auxiliary_T: Mapping[str, Tensor],
    path_T: Tensor,
    *,
    of: str,
    stat: Literal["min", "mean", "last", "sum"] = "min",
    weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Add weight · a statistic of the auxiliary model `of` over the completion's sampled tokens (0 without tokens)."""
    value_T = _get_auxiliary(auxiliary_T, of, "reward_shaping from_tokens").to(reward_P.dtype)
    zeros_P = torch.zeros_like(reward_P)
    if stat == "last":
        last_T = locate_in_path(path_T)[1] == 0
        return reward_P + weight * zeros_P.index_put((path_T[last_T],), value_T[last_T])
    how = {"min": "amin", "mean": "mean", "sum": "sum"}[stat]
    return reward_P + weight * zeros_P.scatter_reduce(0, path_T, value_T, how, include_self=False)


def tiered(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    *,
    tiers: Annotated[dict[str, float], Field(min_length=1)],
    top: float = 1.0,
    at_least: float = 1.0,
) -> Tensor:
    """Replace the reward by the number of the first raw score below `at_least`, or by `top` if none is below.

    `tiers: {formats.matches: -1, answers.exact: 0}`: −1 for a wrong format, 0 for a wrong answer in the right format,
    else `top`.
    """
    shaped_P = torch.full_like(reward_P, float(top))
    for name, earned in reversed(tiers.items()):
        shaped_P = shaped_P.where(_get_score(scores_P, name, "tiered") >= at_least, float(earned))
    return shaped_P


def shorter(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    group_P: Tensor,
    length_P: Tensor,
    *,
    reward: str | None = None,
    at_least: float = 1.0,
    weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Length reward: the shortest of a group gains weight/2, the longest loses as much (Kimi k1.5 2025, section 2.3.3).

    With λ = ½ − (length − shortest)/(longest − shortest), right completions gain weight·λ, wrong ones
    weight·min(0, λ). `reward` names the raw score of correctness (null: the first). A group of equal lengths gains 0.
    """
    right_P = _get_score(scores_P, reward or next(iter(scores_P)), "shorter") >= at_least
    share_P = torch.zeros_like(reward_P)
    for group in group_P.unique():
        member_P = group_P == group
        length = length_P[member_P].to(reward_P.dtype)
        if (spread := length.max() - length.min()) > 0:
            share_P[member_P] = 0.5 - (length - length.min()) / spread
    return reward_P + weight * torch.where(right_P, share_P, share_P.clamp(max=0))


def efficient(
    reward_P: Tensor,
    scores_P: Mapping[str, Tensor],
    length_P: Tensor,
    *,
    alpha: ScheduledFloat,
    reward: str | None = None,
) -> Tensor:
    """Right completions lose α·σ((length − mean)/std) over the right ones of the iteration (Arora & Zanette 2025)."""
    right_P = _get_score(scores_P, reward or next(iter(scores_P)), "efficient") >= 1
    length_P = length_P.to(reward_P.dtype)
    right_lengths = length_P[right_P]
    if len(right_lengths) < 2 or right_lengths.min() == right_lengths.max():
        return reward_P
    cost_P = alpha * ((length_P - right_lengths.mean()) / right_lengths.std(correction=0)).sigmoid()
    return reward_P - cost_P.where(right_P, torch.zeros_like(cost_P))


def entropy_share(
    reward_P: Tensor,
    entropy_behav_T: Tensor,
    path_T: Tensor,
    group_P: Tensor,
    *,
    share: ScheduledFloat = 0.1,
    above: float = 0.0,
) -> Tensor:
    """Right completions gain share · d · H̄/Σ H̄ over the d right ones of their group (GRPO-S, Tan & Pan 2025).

    H̄ is the mean entropy at which the completion's tokens were sampled; right means a reward above `above`.
    """
    entropy_P = torch.zeros_like(reward_P).index_add(0, path_T, entropy_behav_T.to(reward_P.dtype))
    entropy_P = entropy_P / path_T.bincount(minlength=len(reward_P)).clamp(min=1)
    gained_P = torch.zeros_like(reward_P)
    for group in group_P.unique():
        right_P = (group_P == group) & (reward_P > above)
        if (total := entropy_P[right_P].sum()) > 0:
            gained_P[right_P] = right_P.sum() * entropy_P[right_P] / total
    return reward_P + share * gained_P


def _get_score(scores_P: Mapping[str, Tensor], name: str, function: str) -> Tensor:
    """Return the raw scores of one reward; raise StepError if the stage has no reward of that name."""
    if name not in scores_P:
        raise StepError(f"reward_shaping {function}: no reward {name!r} in this stage; it has: {', '.join(scores_P)}")
    return scores_P[name]
