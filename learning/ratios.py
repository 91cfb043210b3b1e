"""Log-ratio of the trained policy to the policy that sampled, at every sampled token.

Shapes: T sampled tokens; `path_T` is the path of each.
"""

import torch
from torch import Tensor

from learning.hybrid import multiple_importance

__all__ = ["multiple_importance", "none", "sequence", "sequence_token", "token"]


def token(lp_T: Tensor, lp_behav_T: Tensor) -> Tensor:
    """One ratio per token (PPO, Schulman et al. 2017)."""
    return lp_T - lp_behav_T


def sequence(lp_T: Tensor, lp_behav_T: Tensor, path_T: Tensor) -> Tensor:
    """Geometric mean over the path, at each of its tokens (GSPO, Zheng et al. 2025, eq. 7)."""
    return _mean_of_path(lp_T - lp_behav_T, path_T)


def sequence_token(lp_T: Tensor, lp_behav_T: Tensor, path_T: Tensor) -> Tensor:
    """Value of the path's geometric mean, gradient of the token's own log-probability (GSPO-token, eq. 14)."""
    return _mean_of_path((lp_T - lp_behav_T).detach(), path_T) + lp_T - lp_T.detach()


def none(lp_T: Tensor) -> Tensor:
    """Ratio 1 with the gradient of the log-probability: the samples are taken to be the trained policy's own."""
    return lp_T - lp_T.detach()


def _mean_of_path(values_T: Tensor, path_T: Tensor) -> Tensor:
    index_T = path_T.unique(return_inverse=True)[1]
    counts = index_T.bincount()
    sums = torch.zeros(len(counts), dtype=values_T.dtype, device=values_T.device).index_add(0, index_T, values_T)
    return (sums / counts)[index_T]
