"""Advantages from rewards of single tokens, which an auxiliary or a branch over one gives.

Shapes: P paths, T sampled tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, following
from learning.batch.keyed import Key, index_of, per_key, sums
from schemas.errors import StepError
from schemas.schedules import ScheduledFloat


def stepwise(
    column: Column, batch: Batch, auxiliary_T: Mapping[str, Tensor], *, of: str, weight: ScheduledFloat = 1.0
) -> Column:
    """The completion's reward after its last token, and at each token `weight` · the auxiliary `of`.

    Put `reward_to_go` behind it. What is added to is a number per completion, or one per token where an operation
    before this has made it so.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    return replace(column, values_X=column.values_X + weight * named(auxiliary_T, of, "advantage stepwise"))


def potential(
    column: Column,
    batch: Batch,
    auxiliary_T: Mapping[str, Tensor],
    *,
    of: str,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    weight: ScheduledFloat = 1.0,
) -> Column:
    """Add γ·Φ(s') − Φ(s) at every token, Φ the auxiliary `of` times `weight` (Ng, Harada & Russell 1999).

    Φ is 0 after the last token, also of a completion that was cut (Grześ 2017): along a completion Σ γ^t of what is
    added is −Φ of the prompt, the same for all completions of a problem, so that the best policy stays the best.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    phi_T = weight * named(auxiliary_T, of, "advantage potential")
    next_T = following(phi_T, torch.zeros_like(phi_T), batch.path_T)
    return replace(column, values_X=column.values_X + gamma * next_T - phi_T)


def rivals(column: Column, batch: Batch, *, by: Key = "group") -> Column:
    """Subtract at every token the mean, over the key's other completions, of their mean per token (PRIME, eq. 5).

    A completion that is alone in its key keeps nothing: it becomes 0.
    """
    if column.unit != "token":
        raise StepError(
            "advantage rivals: works on tokens; put it before reward_to_go, in an advantage stream over an "
            "auxiliary model"
        )
    path_T, index_P = batch.path_T, index_of(batch, torch.arange(batch.num_paths), by)
    size_P = path_T.bincount(minlength=batch.num_paths)
    total_P = column.values_X.new_zeros(batch.num_paths).index_add(0, path_T, column.values_X)
    mean_P = total_P / size_P.clamp(min=1)
    counted_P = (size_P > 0).to(mean_P)
    others_P = sums(counted_P, index_P) - counted_P
    base_P = (sums(mean_P, index_P) - mean_P) / others_P.clamp(min=1)
    low_P, high_P = (per_key(column.values_X, index_P[path_T], f) for f in (torch.min, torch.max))
    nothing_T = (others_P[path_T] == 0) | (low_P == high_P)
    return replace(column, values_X=(column.values_X - base_P[path_T]).masked_fill(nothing_T, 0.0))


def named(auxiliary_T: Mapping[str, Tensor], of: str, asker: str) -> Tensor:
    """An auxiliary's column; raises StepError for one that the stage does not have."""
    if of not in auxiliary_T:
        there = ", ".join(auxiliary_T) or "none"
        raise StepError(f"{asker}: no auxiliary {of!r} in this stage; it has: {there}")
    return auxiliary_T[of].double()
