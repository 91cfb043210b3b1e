"""Masks of the sampled tokens that a loss term covers; other tokens count neither in the sum nor in its denominator.

The masks of a list are combined with `and`. Statistics are taken over the mini-batch that is trained on.
Shapes: T sampled tokens; masks are bool.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch import token_measures
from learning.batch.columns import apply_per_key
from learning.samples.engine_protocol import hash_name
from learning.samples.sample import SOURCES, Source
from schemas.number_schedules import ScheduledFloat


def sources(source_T: Tensor, *, keep: Annotated[list[Source], Field(min_length=1)]) -> Tensor:
    """Tokens of completions from one of the named sources."""
    return torch.isin(source_T, torch.tensor([SOURCES.index(name) for name in keep], device=source_T.device))


def external(external_T: Tensor) -> Tensor:
    """Tokens that no policy sampled: an expert's, a teacher's."""
    return external_T.clone()


def own(external_T: Tensor) -> Tensor:
    """Tokens that the policy sampled, in this iteration or an earlier one."""
    return ~external_T


def positive(advantage_T: Tensor) -> Tensor:
    """Tokens with an advantage above 0."""
    return advantage_T > 0


def positive_of(advantage_T: Tensor, source_T: Tensor, *, of: Annotated[list[Source], Field(min_length=1)]) -> Tensor:
    """Of completions from the sources `of` the tokens with an advantage above 0, and all tokens of others."""
    return (advantage_T > 0) | ~sources(source_T, keep=of)


def negative(advantage_T: Tensor) -> Tensor:
    """Tokens with an advantage below 0."""
    return advantage_T < 0


def rewarded(reward_T: Tensor, *, above: ScheduledFloat = 0.0) -> Tensor:
    """Tokens of completions whose reward is above a bound, whatever the rewards of their group."""
    return reward_T > above


def finished(truncated_T: Tensor) -> Tensor:
    """Tokens of completions that were not truncated at the length limit."""
    return ~truncated_T


def high_entropy(entropy_behav_T: Tensor, *, share: Annotated[float, Field(gt=0, le=1)] = 0.2) -> Tensor:
    """The `share` of tokens sampled at the highest entropies (Wang et al. 2025, "Beyond the 80/20 rule"), with ties."""
    return _mask_top(entropy_behav_T, share)


def high_entropy_turns(
    entropy_behav_T: Tensor,
    turn_T: Tensor,
    path_T: Tensor,
    group_T: Tensor,
    *,
    keep: Annotated[float, Field(gt=0, le=1)] = 0.8,
    among: Literal["batch", "group", "episode"] = "batch",
) -> Tensor:
    """The share `keep` of an episode's turns with the highest mean entropies (DART, Li et al. 2025).

    ⌈keep · n⌉ of the n turns of the mini-batch, of a group or of an episode, ties included. Turns without recorded
    entropies (an expert's, those of a stored file: 0 throughout) are always kept and not counted. Shapes: U turns.
    """
    if not len(turn_T):
        return torch.zeros_like(turn_T, dtype=torch.bool)
    place_T = path_T * (turn_T.max() + 1) + turn_T
    turn_U, turn_of_T = place_T.unique(return_inverse=True)
    size_U = torch.bincount(turn_of_T, minlength=len(turn_U))
    mean_U = entropy_behav_T.new_zeros(len(turn_U)).index_add(0, turn_of_T, entropy_behav_T) / size_U
    scope_T = {"batch": torch.zeros_like(path_T), "group": group_T, "episode": path_T}[among]
    scope_U = torch.zeros_like(turn_U).scatter(0, turn_of_T, scope_T)
    return (_mask_top_of_each(mean_U, scope_U, mean_U != 0, keep) | (mean_U == 0))[turn_of_T]


def multiple_of_turns(path_T: Tensor, turn_T: Tensor, step: int, *, of: Annotated[int, Field(ge=1)]) -> Tensor:
    """All turns but as many random ones as make their number a multiple of `of` (IterResearch, Chen et al. 2025).

    For `of` trainers that each take the same number of turns. Fewer turns than `of` are left out altogether. The choice
    is a function of the iteration and of the number of turns.
    """
    place_T = path_T * (int(turn_T.max()) + 1 if len(turn_T) else 1) + turn_T
    turn_U, turn_of_T = place_T.unique(return_inverse=True)
    generator = torch.Generator().manual_seed(step)
    kept_U = torch.randperm(len(turn_U), generator=generator) < len(turn_U) // of * of
    return kept_U[turn_of_T]


def low_entropy(entropy_behav_T: Tensor, *, share: Annotated[float, Field(gt=0, le=1)] = 0.2) -> Tensor:
    """The `share` of tokens sampled at the lowest entropies, ties included."""
    return _mask_top(-entropy_behav_T, share)


def outside_tags(tag_T: Tensor, *, tags: Annotated[list[str], Field(min_length=1)]) -> Tensor:
    """Tokens that are in none of the named tags, such as `<information>…</information>` (SSRL 2025).

    The tags themselves count as inside; a tag that is not closed has no inside.
    """
    return ~torch.isin(tag_T, torch.tensor([hash_name(tag) for tag in tags], device=tag_T.device))


def unlikely(lp_behav_T: Tensor, *, below: Annotated[float, Field(gt=0, le=1)]) -> Tensor:
    """Tokens with a probability below a bound when they were sampled."""
    return lp_behav_T.exp() < below


def early(place_T: Tensor, *, tokens: Annotated[int, Field(ge=1)]) -> Tensor:
    """The first `tokens` tokens of every completion."""
    return place_T < tokens


def fresh(version_T: Tensor, step: int, *, max_age: Annotated[int, Field(ge=0)]) -> Tensor:
    """Tokens sampled at most `max_age` iterations ago."""
    return version_T >= step - max_age


def high_covariance(
    lp_prox_T: Tensor, advantage_T: Tensor, *, share: Annotated[float, Field(gt=0, le=1)] = 2e-4
) -> Tensor:
    """Tokens with the highest covariance of log-probability and advantage (KL-Cov, Cui et al. 2025, eq. 13).

    max(1, ⌊share·T⌋) of them, ties included; their updates cost the policy most entropy.
    """
    if not len(lp_prox_T):
        return torch.zeros_like(lp_prox_T, dtype=torch.bool)
    covariance_T = token_measures.compute_covariance(lp_prox_T, advantage_T)
    count = max(1, math.floor(share * len(covariance_T) + 1e-9))
    return covariance_T >= covariance_T.topk(count).values[-1]


def mask_mastered(
    reward_T: Tensor,
    lp_prox_T: Tensor,
    entropy_prox_T: Tensor,
    path_T: Tensor,
    *,
    tau: Annotated[float, Field(gt=0, le=1)] = 0.99,
    target_entropy: Annotated[float, Field(ge=0)] = 0.2,
    among: Literal["batch", "completion"] = "batch",
) -> Tensor:
    """All tokens except, while the mean entropy is below a target, those already mastered (UloRL, Du et al. 2025).

    Mastered are tokens of probability `tau` or more, before the update, in completions with a reward above 0: training
    on them only lowers the entropy. Entropies are in nats; the mean is over the tokens of the mini-batch, or of each
    `completion` by itself (eq. 10).
    """
    if not len(reward_T):
        return torch.ones_like(reward_T, dtype=torch.bool)
    scope_T = torch.zeros_like(path_T) if among == "batch" else path_T
    low_T = apply_per_key(entropy_prox_T, scope_T, torch.mean) < target_entropy
    return ~low_T | (reward_T <= 0) | (lp_prox_T.exp() < tau)


def _mask_top(value_T: Tensor, share: float) -> Tensor:
    """Return a mask of the ⌈share·T⌉ highest values, ties included."""
    if not len(value_T):
        return torch.zeros_like(value_T, dtype=torch.bool)
    count = max(1, math.ceil(share * len(value_T) - 1e-9))
    return value_T >= value_T.topk(count).values[-1]


def _mask_top_of_each(value_U: Tensor, scope_U: Tensor, counted_U: Tensor, share: float) -> Tensor:
    """Return a mask of the ⌈share·n⌉ highest of the n counted values of each scope, ties included."""
    top_U = torch.zeros_like(counted_U)
    for scope in scope_U[counted_U].unique():
        member_U = (scope_U == scope) & counted_U
        top_U[member_U] = _mask_top(value_U[member_U], share)
    return top_U
