"""Tokens whose update costs the policy most entropy: those likely and good, or unlikely and bad, beside the others.

The entropy falls by about the covariance of log-probability and advantage (Cui et al. 2025, "The Entropy Mechanism"):
a token's share is (log π − mean log π)·(A − mean A), π the policy before this iteration's update.
Shapes: T sampled tokens; nothing here carries a gradient.
"""

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

Share = Annotated[float, Field(gt=0, le=1)]


def covariance(lp_prox_T: Tensor, advantage_T: Tensor) -> Tensor:
    """Each token's share in the covariance of log-probability and advantage."""
    lp_T, advantage_T = lp_prox_T.double(), advantage_T.double()
    return (lp_T - lp_T.mean()) * (advantage_T - advantage_T.mean())


def covariance_drop(
    lp_prox_T: Tensor,
    advantage_T: Tensor,
    rng: np.random.Generator,
    *,
    share: Share = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """Drop max(1, ⌊share·T⌋) tokens drawn from those of a covariance between the bounds (Clip-Cov, eq. 11-12)."""
    covariance_T = covariance(lp_prox_T, advantage_T)
    near = ((covariance_T > low) & (covariance_T < high)).nonzero()[:, 0]
    factor_T = torch.ones_like(covariance_T)
    count = min(len(near), max(1, math.floor(share * len(covariance_T) + 1e-9)))
    factor_T[near[torch.from_numpy(rng.permutation(len(near))[:count])]] = 0.0
    return factor_T


def high_covariance(lp_prox_T: Tensor, advantage_T: Tensor, *, share: Share = 2e-4) -> Tensor:
    """The max(1, ⌊share·T⌋) tokens of the highest covariance, and those equal to the last of them (KL-Cov, eq. 13)."""
    if not len(lp_prox_T):
        return torch.zeros_like(lp_prox_T, dtype=torch.bool)
    covariance_T = covariance(lp_prox_T, advantage_T)
    count = max(1, math.floor(share * len(covariance_T) + 1e-9))
    return covariance_T >= covariance_T.topk(count).values[-1]
