"""Advantages for batches of several tasks whose rewards have different scales (GoLongRL).

Shapes: P paths, G groups.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, sum_by_index


def tmn_reweight(
    column: Column,
    batch: Batch,
    *,
    by: Literal["family", "batch"] = "family",
    gamma: Annotated[float, Field(ge=0)] | None = None,
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0,
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Task-mean normalisation: w·(r − mean of the group)/√(mean variance of the task's groups) (GoLongRL 2026).

    All problems of a task share one scale, so that a group with small differences stays small. With `gamma` (null: w is
    1) a group of pass rate p has weight e^(γ(½ − p)) above its mean and e^(γ(p − ½)) below; a completion passes if it
    exceeds its group's mean, mixed by `smoothing` with the mean of the task's groups. A group of one or of equal
    rewards gives exactly 0. Raise ValueError unless the column has one number per path.
    """
    if column.unit != "path":
        raise ValueError(
            "advantage tmn_reweight: the values are one per token, not one per completion; "
            "put it before broadcast_to_tokens and reward_to_go"
        )
    values_P = column.values_X
    index_P = batch.paths["group"].unique(return_inverse=True)[1]
    count_G, mean_G, variance_G = _compute_moments(values_P, index_P)
    task_P = batch.key(by).unique(return_inverse=True)[1]
    task_G = torch.zeros_like(count_G, dtype=torch.long).index_put((index_P,), task_P)
    centred_P = (values_P - mean_G[index_P]).masked_fill(_mask_equal(values_P, index_P), 0.0)
    scaled_P = centred_P / (_mean_by_index(variance_G, task_G).sqrt()[task_P] + epsilon)
    if gamma is not None:
        bar_G = (1 - smoothing) * mean_G + smoothing * _mean_by_index(mean_G, task_G)[task_G]
        rate_G = sum_by_index((values_P > bar_G[index_P]).to(values_P.dtype), index_P) / count_G
        exponent_P = gamma * (0.5 - rate_G)[index_P]
        scaled_P = scaled_P * torch.where(centred_P > 0, exponent_P, -exponent_P).exp()
    # If every group of the task has equal rewards and epsilon is 0, the division above is 0/0.
    return replace(column, values_X=scaled_P.masked_fill(centred_P == 0, 0.0))


def _compute_moments(values_P: Tensor, index_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return size, mean and unbiased variance of each group; a group of one has variance 1, as in GRPO."""
    count_G = sum_by_index(torch.ones_like(values_P), index_P)
    mean_G = sum_by_index(values_P, index_P) / count_G
    squares_G = sum_by_index((values_P - mean_G[index_P]).square(), index_P)
    return count_G, mean_G, torch.where(count_G > 1, squares_G / (count_G - 1).clamp(min=1), torch.ones_like(mean_G))


def _mask_equal(values_P: Tensor, index_P: Tensor) -> Tensor:
    low_G = torch.full((int(index_P.max()) + 1,), torch.inf, dtype=values_P.dtype)
    low_G.scatter_reduce_(0, index_P, values_P, "amin")
    high_G = torch.full_like(low_G, -torch.inf).scatter_reduce_(0, index_P, values_P, "amax")
    return (low_G == high_G)[index_P]


def _mean_by_index(values_X: Tensor, index_X: Tensor) -> Tensor:
    return sum_by_index(values_X, index_X) / sum_by_index(torch.ones_like(values_X), index_X)
