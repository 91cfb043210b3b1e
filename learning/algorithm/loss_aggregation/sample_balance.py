"""Weights of samples by reward and probability together: sample-balanced weighting of VeriRL (2025, arXiv:2508.18462).

Of two ratios, the reward of a completion to the mean reward and its probability to the mean probability, the larger
weighs its policy term and the smaller its KL term: a rare good sample is learnt from, and held less. Where the
paper leaves open what a completion's probability is, it is the geometric mean of its tokens' when they were sampled.

Shapes: P paths, T sampled tokens of the mini-batch.
"""

from typing import Literal

import torch
from torch import Tensor

from learning.batch.batch import Batch
from schemas.errors import StepError


def sample_balanced(batch: Batch, *, by: Literal["max", "min"], count_dropped: bool = False) -> Tensor:
    """Mean over tokens, each weighted by the `max` or `min` of R/mean R and P/mean P of its completion (VeriRL's SbW).

    Use `max` for the surrogate and `min` for the KL term. A mean reward of 0 counts every R/mean R as 1. Raises
    StepError for a negative reward.
    """
    kept_T = (~batch.sampled("dropped")).double()
    counted = len(kept_T) if count_dropped else float(kept_T.sum())
    return kept_T / max(counted, 1) * balance(batch, by)[batch.path_T]


def balance(batch: Batch, by: str) -> Tensor:
    """α (`max`) or β (`min`) of every path: (P,) in float64."""
    reward_P, path_T = batch.paths["reward"].double(), batch.path_T
    if bool((reward_P < 0).any()):
        raise StepError(
            "weigh sample_balanced: a reward is below 0; use rewards of 0 to 1 (a sigmoid of a learned one)"
        )
    length_P = path_T.bincount(minlength=batch.num_paths).clamp(min=1)
    mean_lp_P = torch.zeros(batch.num_paths, dtype=torch.float64).index_add(
        0, path_T, batch.sampled("lp_behav").double()
    )
    shares = torch.stack([_share(reward_P), _share((mean_lp_P / length_P).exp())])
    return shares.amax(0) if by == "max" else shares.amin(0)


def _share(values_P: Tensor) -> Tensor:
    mean = values_P.mean()
    return values_P / mean if mean > 0 else torch.ones_like(values_P)
