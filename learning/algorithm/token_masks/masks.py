"""Which sampled tokens a term of the loss is about; what is left out neither adds to the sum nor counts in its weights.

Several selections of a list must all agree. Statistics are taken over the mini-batch that is trained on.
Shapes: T sampled tokens; masks are bool.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.algorithm.token_masks.covariance import high_covariance
from learning.samples.sample import SOURCES
from schemas.schedules import ScheduledFloat

__all__ = [
    "Source", "early", "external", "finished", "fresh", "high_covariance", "high_entropy", "high_entropy_turns",
    "low_entropy", "negative", "own", "positive", "rewarded", "sources", "unlikely",
]  # fmt: skip

Source = Literal[
    "policy", "greedy", "expert", "replay", "hinted", "in_context", "teacher", "hot", "cold", "auxiliary", "reset",
    "peer",
]  # fmt: skip


def sources(source_T: Tensor, *, keep: Annotated[list[Source], Field(min_length=1)]) -> Tensor:
    """Tokens of completions that come from one of the named sources."""
    return torch.isin(source_T, torch.tensor([SOURCES.index(name) for name in keep], device=source_T.device))


def external(external_T: Tensor) -> Tensor:
    """Tokens that nobody's policy sampled: an expert's, a teacher's."""
    return external_T.clone()


def own(external_T: Tensor) -> Tensor:
    """Tokens that a policy sampled, now or earlier."""
    return ~external_T


def positive(advantage_T: Tensor) -> Tensor:
    """Tokens with an advantage above 0."""
    return advantage_T > 0


def negative(advantage_T: Tensor) -> Tensor:
    """Tokens with an advantage below 0."""
    return advantage_T < 0


def rewarded(reward_T: Tensor, *, above: ScheduledFloat = 0.0) -> Tensor:
    """Tokens of completions whose reward is above a bound: the good ones, whatever the rest of their group."""
    return reward_T > above


def finished(truncated_T: Tensor) -> Tensor:
    """Tokens of completions that ended by themselves, not at the length limit."""
    return ~truncated_T


def high_entropy(entropy_behav_T: Tensor, *, share: Annotated[float, Field(gt=0, le=1)] = 0.2) -> Tensor:
    """The share of tokens that were sampled at the highest entropies (Wang et al. 2025, "Beyond the 80/20 rule").

    Tokens as uncertain as the last one in are in too.
    """
    return _top(entropy_behav_T, share)


def high_entropy_turns(
    entropy_behav_T: Tensor,
    turn_T: Tensor,
    path_T: Tensor,
    group_T: Tensor,
    *,
    keep: Annotated[float, Field(gt=0, le=1)] = 0.8,
    among: Literal["batch", "group", "episode"] = "batch",
) -> Tensor:
    """The share of the turns of episodes that were sampled at the highest mean entropies (DART, Li et al. 2025).

    ⌈keep · n⌉ of the n turns of the mini-batch, of a group or of an episode; turns as uncertain as the last one in are
    in too. Turns whose entropies nobody noted (an expert's, those of a stored file: 0 throughout) are in, and not
    counted. Shapes here: U turns.
    """
    if not len(turn_T):
        return torch.zeros_like(turn_T, dtype=torch.bool)
    place_T = path_T * (turn_T.max() + 1) + turn_T
    found_U, turn_of_T = place_T.unique(return_inverse=True)
    size_U = torch.bincount(turn_of_T, minlength=len(found_U))
    mean_U = entropy_behav_T.new_zeros(len(found_U)).index_add(0, turn_of_T, entropy_behav_T) / size_U
    scope_T = {"batch": torch.zeros_like(path_T), "group": group_T, "episode": path_T}[among]
    scope_U = torch.zeros_like(found_U).scatter(0, turn_of_T, scope_T)
    return (_top_of_each(mean_U, scope_U, mean_U != 0, keep) | (mean_U == 0))[turn_of_T]


def low_entropy(entropy_behav_T: Tensor, *, share: Annotated[float, Field(gt=0, le=1)] = 0.2) -> Tensor:
    """The share of tokens that were sampled at the lowest entropies; ties with the last one in are in too."""
    return _top(-entropy_behav_T, share)


def unlikely(lp_behav_T: Tensor, *, below: Annotated[float, Field(gt=0, le=1)]) -> Tensor:
    """Tokens whose probability was below a bound when they were sampled."""
    return lp_behav_T.exp() < below


def early(place_T: Tensor, *, tokens: Annotated[int, Field(ge=1)]) -> Tensor:
    """The first tokens of every completion."""
    return place_T < tokens


def fresh(version_T: Tensor, step: int, *, max_age: Annotated[int, Field(ge=0)]) -> Tensor:
    """Tokens sampled at most `max_age` iterations ago."""
    return version_T >= step - max_age


def mask_mastered(
    reward_T: Tensor,
    lp_prox_T: Tensor,
    entropy_prox_T: Tensor,
    *,
    tau: Annotated[float, Field(gt=0, le=1)] = 0.99,
    target_entropy: Annotated[float, Field(ge=0)] = 0.2,
) -> Tensor:
    """All tokens, but while the mean entropy is below a target not those that good completions hold for certain.

    Mastered are tokens of probability τ or more, before the update, in completions with a reward above 0: to push them
    further only lowers the entropy (UloRL, Du et al. 2025). Entropies are in nats.
    """
    if len(reward_T) and entropy_prox_T.mean() < target_entropy:
        return (reward_T <= 0) | (lp_prox_T.exp() < tau)
    return torch.ones_like(reward_T, dtype=torch.bool)


def _top(value_T: Tensor, share: float) -> Tensor:
    """The ⌈share·T⌉ highest values, and those equal to the last of them."""
    if not len(value_T):
        return torch.zeros_like(value_T, dtype=torch.bool)
    count = max(1, math.ceil(share * len(value_T) - 1e-9))
    return value_T >= value_T.topk(count).values[-1]


def _top_of_each(value_U: Tensor, scope_U: Tensor, counted_U: Tensor, share: float) -> Tensor:
    """The ⌈share·n⌉ highest of the n values that are counted in each scope, and those equal to the last of them."""
    top_U = torch.zeros_like(counted_U)
    for scope in scope_U[counted_U].unique():
        at_U = (scope_U == scope) & counted_U
        top_U[at_U] = _top(value_U[at_U], share)
    return top_U
