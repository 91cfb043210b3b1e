"""Log-ratio of the trained policy to the policy that sampled, at every sampled token.

Shapes: T sampled tokens; `path_T` is the path of each.
"""

from torch import Tensor

from learning.algorithm.policy_losses.hybrid import multiple_importance
from learning.batch.path_sums import mean_of_path, sum_of_path
from schemas.schedules import ScheduledFloat

__all__ = [
    "decoupled", "mixture", "multiple_importance", "none", "pseudo_on_policy", "sequence", "sequence_arithmetic",
    "sequence_product", "sequence_token", "token",
]  # fmt: skip

LIMIT = 20.0


def token(lp_T: Tensor, lp_behav_T: Tensor) -> Tensor:
    """One ratio per token (PPO, Schulman et al. 2017).

    A completion of several segments is compared, token by token, with the weights that sampled each (segment-aware
    importance sampling of UloRL, Du et al. 2025).
    """
    return lp_T - lp_behav_T


def sequence(lp_T: Tensor, lp_behav_T: Tensor, path_T: Tensor) -> Tensor:
    """Geometric mean over the path, at each of its tokens (GSPO, Zheng et al. 2025, eq. 7)."""
    return mean_of_path(lp_T - lp_behav_T, path_T)


def sequence_token(lp_T: Tensor, lp_behav_T: Tensor, path_T: Tensor) -> Tensor:
    """Value of the path's geometric mean, gradient of the token's own log-probability (GSPO-token, eq. 14)."""
    return mean_of_path((lp_T - lp_behav_T).detach(), path_T) + lp_T - lp_T.detach()


def sequence_product(lp_T: Tensor, lp_behav_T: Tensor, path_T: Tensor) -> Tensor:
    """Log-ratio of whole completions: the sum over the path, at each of its tokens."""
    return sum_of_path(lp_T - lp_behav_T, path_T)


def sequence_arithmetic(lp_T: Tensor, lp_behav_T: Tensor, path_T: Tensor) -> Tensor:
    """Logarithm of the mean of the tokens' ratios over the path (GRPO-S, Tan & Pan 2025)."""
    return mean_of_path((lp_T - lp_behav_T).clamp(-LIMIT, LIMIT).exp(), path_T).log()


def decoupled(lp_T: Tensor, lp_prox_T: Tensor) -> Tensor:
    """To the policy as it was before this iteration's update (decoupled PPO, Hilton et al. 2022; AReaL 2025).

    What the sampling policy differs from that one is the matter of `importance_correction`; with neither, samples count
    as own.
    """
    return lp_T - lp_prox_T


def pseudo_on_policy(lp_T: Tensor, lp_behav_T: Tensor, lp_prox_T: Tensor, version_T: Tensor, step: int) -> Tensor:
    """Tokens of earlier iterations count as sampled by the weights before this update (POIS of UloRL, Du et al. 2025).

    A completion of several segments is then never clipped for what changed while it was suspended.
    """
    return lp_T - lp_behav_T.where(version_T >= step, lp_prox_T)


def mixture(lp_T: Tensor, lp_behav_T: Tensor, lp_prox_T: Tensor, *, share: ScheduledFloat = 0.5) -> Tensor:
    """To a mixture: log π − log(share · π_prox + (1 − share) · π_behav), the balance heuristic (Veach & Guibas 1995).

    For batches with stored samples beside own ones: before the update the ratio is at most 1/share.
    """
    return lp_T - (share * lp_prox_T.exp() + (1 - share) * lp_behav_T.exp()).log()


def none(lp_T: Tensor) -> Tensor:
    """Ratio 1 with the gradient of the log-probability: the samples are taken to be the trained policy's own."""
    return lp_T - lp_T.detach()
