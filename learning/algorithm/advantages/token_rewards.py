"""Operations of the advantage pipeline on rewards of single tokens, which an auxiliary model provides.

Shapes: P paths, T sampled tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import (
    Column,
    Key,
    apply_per_key,
    broadcast_to_tokens,
    get_auxiliary,
    index_keys,
    sum_per_key,
    take_next_token,
)
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat


def stepwise(
    column: Column, batch: Batch, auxiliary_T: Mapping[str, Tensor], *, of: str, weight: ScheduledFloat = 1.0
) -> Column:
    """Add `weight` · the auxiliary model `of` at each token to the completion's reward, which counts at its last token.

    Put `reward_to_go` after it. The column may also hold one number per token by an earlier operation.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    return replace(column, values_X=column.values_X + weight * get_auxiliary(auxiliary_T, of, "advantage stepwise"))


def potential(
    column: Column,
    batch: Batch,
    auxiliary_T: Mapping[str, Tensor],
    *,
    of: str,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    weight: ScheduledFloat = 1.0,
) -> Column:
    """Potential-based shaping: add γ·Φ(s') − Φ(s) at every token, Φ an auxiliary model (Ng, Harada & Russell 1999).

    Φ is the auxiliary `of` times `weight`, and 0 after the last token, also of truncated completions (Grześ 2017). The
    discounted sum of the added terms is −Φ of the prompt, equal for all completions of a problem, so that the optimal
    policy does not change.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    phi_T = weight * get_auxiliary(auxiliary_T, of, "advantage potential")
    next_T = take_next_token(phi_T, torch.zeros_like(phi_T), batch.path_T)
    return replace(column, values_X=column.values_X + gamma * next_T - phi_T)


def rivals(column: Column, batch: Batch, *, by: Key = "group") -> Column:
    """Leave-one-out baseline of token rewards: subtract the mean over the key's other completions (PRIME, eq. 5).

    Each completion counts by its mean per token. A completion that is alone in its key becomes 0.
    """
    if column.unit != "token":
        raise StepError(
            "advantage rivals: the values are one per completion, not one per token; "
            "use it in an advantage stream over an auxiliary model, before reward_to_go"
        )
    path_T, index_P = batch.path_T, index_keys(batch, torch.arange(batch.num_paths), by)
    size_P = path_T.bincount(minlength=batch.num_paths)
    total_P = column.values_X.new_zeros(batch.num_paths).index_add(0, path_T, column.values_X)
    mean_P = total_P / size_P.clamp(min=1)
    counted_P = (size_P > 0).to(mean_P)
    others_P = sum_per_key(counted_P, index_P) - counted_P
    base_P = (sum_per_key(mean_P, index_P) - mean_P) / others_P.clamp(min=1)
    low_P, high_P = (apply_per_key(column.values_X, index_P[path_T], f) for f in (torch.min, torch.max))
    nothing_T = (others_P[path_T] == 0) | (low_P == high_P)
    return replace(column, values_X=(column.values_X - base_P[path_T]).masked_fill(nothing_T, 0.0))
