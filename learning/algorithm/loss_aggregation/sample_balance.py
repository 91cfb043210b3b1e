"""Weights of samples by reward and probability together: sample-balanced weighting of VeriRL (2025, arXiv:2508.18462).

Of two ratios, the reward of a completion to the mean reward and its probability to the mean probability, the larger
weights its policy loss and the smaller its KL term: a rare good sample counts more and is regularised less. The paper
does not define a completion's probability; here it is the geometric mean of its tokens' sampling probabilities.

Shapes: P paths, T sampled tokens of the mini-batch.
"""

from typing import Literal

import torch
from torch import Tensor

from learning.batch.batch import Batch
from schemas.errors import StepError


def sample_balanced(batch: Batch, *, by: Literal["max", "min"], count_dropped: bool = False) -> Tensor:
    """Mean over tokens, each weighted by the `max` or `min` of R/mean R and P/mean P of its completion (VeriRL's SbW).

    Use `max` for the policy loss and `min` for the KL term. With a mean reward of 0 every R/mean R counts as 1. Raise
    StepError if a reward is negative.
    """
    kept_T = (~batch.sampled("dropped")).double()
    counted = len(kept_T) if count_dropped else float(kept_T.sum())
    return kept_T / max(counted, 1) * balance(batch, by)[batch.path_T]


def balance(batch: Batch, by: str) -> Tensor:
    """Return α (`max`) or β (`min`) of every path: (P,) in float64."""
    reward_P, path_T = batch.paths["reward"].double(), batch.path_T
    if bool((reward_P < 0).any()):
        raise StepError(
            "loss_aggregation sample_balanced: a reward is below 0; use rewards from 0 to 1 "
            "(for a learned reward, its sigmoid)"
        )
    length_P = path_T.bincount(minlength=batch.num_paths).clamp(min=1)
    mean_lp_P = torch.zeros(batch.num_paths, dtype=torch.float64).index_add(
        0, path_T, batch.sampled("lp_behav").double()
    )
    shares = torch.stack([_divide_by_mean(reward_P), _divide_by_mean((mean_lp_P / length_P).exp())])
    return shares.amax(0) if by == "max" else shares.amin(0)


def _divide_by_mean(values_P: Tensor) -> Tensor:
    """Return the values divided by their mean, or ones if the mean is 0."""
    mean = values_P.mean()
    return values_P / mean if mean > 0 else torch.ones_like(values_P)
