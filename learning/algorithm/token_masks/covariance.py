"""Tokens whose update costs the policy most entropy: those likely and good, or unlikely and bad, beside the others.

The entropy falls by about the covariance of log-probability and advantage (Cui et al. 2025, "The Entropy Mechanism"):
a token's share is (log π − mean log π)·(A − mean A), π the policy before this iteration's update.
Shapes: T sampled tokens; nothing here carries a gradient.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

Share = Annotated[float, Field(gt=0, le=1)]


def covariance(lp_prox_T: Tensor, advantage_T: Tensor) -> Tensor:
    """Each token's share in the covariance of log-probability and advantage."""
    lp_T, advantage_T = lp_prox_T.double(), advantage_T.double()
    return (lp_T - lp_T.mean()) * (advantage_T - advantage_T.mean())
