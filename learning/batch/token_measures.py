"""Statistics of single tokens, used by functions of several slots.

Shapes: T sampled tokens, X entries of any column; no result carries a gradient.
"""

import torch
from torch import Tensor

ENTROPY_FLOOR = 1e-8
"""Lower bound of entropies, in nats, before their logarithm is taken."""


def score_entropy(entropy_X: Tensor, low: float, pivot: float, high: float) -> Tensor:
    """Return h of each entropy (nats): −1 at log-entropy `low`, 0 at `pivot`, 1 at `high`, clamped to [−1, 1]."""
    gap_X = entropy_X.clamp(min=ENTROPY_FLOOR).log() - pivot
    above_X, below_X = gap_X / max(high - pivot, ENTROPY_FLOOR), gap_X / max(pivot - low, ENTROPY_FLOOR)
    return torch.where(gap_X > 0, above_X, below_X).clamp(-1, 1)


def compute_covariance(lp_prox_T: Tensor, advantage_T: Tensor) -> Tensor:
    """Return each token's share in the covariance of log-probability and advantage.

    The entropy of the policy falls by about this covariance (Cui et al. 2025, "The Entropy Mechanism"): a token's share
    is (log π − mean log π)·(A − mean A), π the policy before this iteration's update.
    """
    lp_T, advantage_T = lp_prox_T.double(), advantage_T.double()
    return (lp_T - lp_T.mean()) * (advantage_T - advantage_T.mean())
