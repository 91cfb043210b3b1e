"""Operations of the advantage pipeline that give the tokens of a path different values.

Shapes: T sampled tokens, P paths, L sampled tokens of the longest path.
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, locate_in_path, sum_of_later, sum_per_key


def entropy_share(
    column: Column,
    batch: Batch,
    entropy_behav_T: Tensor,
    *,
    reward: Annotated[float, Field(ge=0)] = 1.0,
    share: Annotated[float, Field(ge=0)] = 0.1,
    above: float = 0.0,
) -> Column:
    """Reward tokens of right completions by their share of the entropy at their position (GTPO, Tan & Pan 2025).

    A token at position t of a completion whose reward r is above `above` gets reward · r + share · d_t · H_t / Σ H_t;
    the sum is over the d_t right completions of the group that reach this position. All others get reward · r.
    """
    column = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    right_T = column.raw_X > above
    place_T = locate_in_path(path_T)[0]
    width = int(place_T.max()) + 1 if len(place_T) else 1
    index_T = (batch.paths["group"][path_T].unique(return_inverse=True)[1] * width + place_T).unique(
        return_inverse=True
    )[1]
    entropy_T = entropy_behav_T.to(column.values_X.dtype)
    total_T = sum_per_key(entropy_T, index_T, right_T)
    count_T = sum_per_key(torch.ones_like(entropy_T), index_T, right_T)
    part_T = (count_T * entropy_T / total_T).where(right_T & (total_T > 0), torch.zeros_like(entropy_T))
    return replace(column, values_X=reward * column.values_X + share * part_T)


def token_baseline(
    column: Column,
    batch: Batch,
    lp_prox_T: Tensor,
    collision_prox_T: Tensor,
    *,
    epsilon: Annotated[float, Field(ge=0)] = 1e-8,
) -> Column:
    """Optimal token baseline: subtract at each position a gradient-weighted mean of the group (Li et al. 2026).

    B_t = Σ G_t·W_t / (Σ W_t + ε) over the group's paths that reach position t, with W_t = Σ_{j ≤ t} (1 − 2π_j + Σ_v
    π_v²), the squared norm of the gradient of log π with respect to the logits. Put it after `reward_to_go`.
    """
    column = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    place_T = locate_in_path(path_T)[0]
    if not len(place_T):
        return column
    width = int(place_T.max()) + 1
    energy_PL = column.values_X.new_zeros(batch.num_paths, width)
    energy_PL[path_T, place_T] = (1 - 2 * lp_prox_T.exp() + collision_prox_T).to(energy_PL.dtype)
    weight_T = energy_PL.cumsum(1)[path_T, place_T]
    group_P = batch.paths["group"].unique(return_inverse=True)[1]
    index_T = (group_P[path_T] * width + place_T).unique(return_inverse=True)[1]
    base_T = sum_per_key(column.values_X * weight_T, index_T) / (sum_per_key(weight_T, index_T) + epsilon)
    return replace(column, values_X=column.values_X - base_T)


def path_consistency(
    column: Column,
    batch: Batch,
    value_T: Tensor,
    lp_prox_T: Tensor,
    lp_ref_T: Tensor,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.03,
) -> Column:
    """Reward-to-go minus the value, the target of the policy loss `path_consistent` (OREO, Wang et al. 2024, eq. 8-9).

    The critic's target is R_t − β·Σ_{j ≥ t} log(π_j/π_ref,j), π before the update. Put it after `reward_to_go` and give
    `path_consistent` the same β.
    """
    column = broadcast_to_tokens(column, batch)
    gap_T = (lp_prox_T - lp_ref_T).to(column.values_X.dtype)
    target_T = column.values_X - beta * (sum_of_later(gap_T, batch.path_T) + gap_T)
    return replace(column, values_X=column.values_X - value_T.to(gap_T.dtype), return_X=target_T)
