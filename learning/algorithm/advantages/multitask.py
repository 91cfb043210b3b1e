"""Advantages when one batch holds several kinds of problems, each rewarded on a scale of its own (GoLongRL).

Shapes: P paths, G groups.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column
from learning.batch.keyed import totals


def tmn_reweight(
    column: Column,
    batch: Batch,
    *,
    by: Literal["family", "batch"] = "family",
    gamma: Annotated[float, Field(ge=0)] | None = None,
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0,
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """w·(r − mean of the group)/√(mean over the task's groups of their variance): TMN-Reweight (GoLongRL 2026).

    All problems of a task share one scale, so that a group with small differences stays small. With `gamma` (null: w is
    1) a group of pass rate p weighs e^(γ(½ − p)) above its mean and e^(γ(p − ½)) below; a completion passes when it
    beats its group's mean, mixed by `smoothing` with the mean of the task's groups. A group of one or of equal rewards
    gives exactly 0. Raises ValueError for a column that is no longer one number per path.
    """
    if column.unit != "path":
        raise ValueError(
            "tmn_reweight works on one number per path; put it before broadcast_to_tokens and reward_to_go"
        )
    values_P = column.values_X
    index_P = batch.paths["group"].unique(return_inverse=True)[1]
    count_G, mean_G, variance_G = _moments(values_P, index_P)
    task_P = batch.key(by).unique(return_inverse=True)[1]
    task_G = torch.zeros_like(count_G, dtype=torch.long).index_put((index_P,), task_P)
    centred_P = (values_P - mean_G[index_P]).masked_fill(_flat(values_P, index_P), 0.0)
    scaled_P = centred_P / (_mean(variance_G, task_G).sqrt()[task_P] + epsilon)
    if gamma is not None:
        bar_G = (1 - smoothing) * mean_G + smoothing * _mean(mean_G, task_G)[task_G]
        rate_G = totals((values_P > bar_G[index_P]).to(values_P.dtype), index_P) / count_G
        exponent_P = gamma * (0.5 - rate_G)[index_P]
        scaled_P = scaled_P * torch.where(centred_P > 0, exponent_P, -exponent_P).exp()
    # A scale of 0 (every group of the task is flat, epsilon 0) divides 0 by 0.
    return replace(column, values_X=scaled_P.masked_fill(centred_P == 0, 0.0))


def _moments(values_P: Tensor, index_P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Members, mean and unbiased variance of each group; a group of one has variance 1, as GRPO takes its deviation."""
    count_G = totals(torch.ones_like(values_P), index_P)
    mean_G = totals(values_P, index_P) / count_G
    squares_G = totals((values_P - mean_G[index_P]).square(), index_P)
    return count_G, mean_G, torch.where(count_G > 1, squares_G / (count_G - 1).clamp(min=1), torch.ones_like(mean_G))


def _flat(values_P: Tensor, index_P: Tensor) -> Tensor:
    low_G = torch.full((int(index_P.max()) + 1,), torch.inf, dtype=values_P.dtype)
    low_G.scatter_reduce_(0, index_P, values_P, "amin")
    high_G = torch.full_like(low_G, -torch.inf).scatter_reduce_(0, index_P, values_P, "amax")
    return (low_G == high_G)[index_P]


def _mean(values_X: Tensor, index_X: Tensor) -> Tensor:
    return totals(values_X, index_X) / totals(torch.ones_like(values_X), index_X)
