"""Policy loss of HAPO (Liu et al. 2025): clip bounds and advantages follow the entropy at which a token was sampled.

A token's score h in [−1, 1] places the logarithm of its entropy: −1 at the lowest of the batch, 0 at a pivot (a
quantile), 1 at the highest, linear in between. The three numbers come from controllers of the stage, so that the loss
of a micro-batch does not depend on the rest of its batch.
Shapes: T sampled tokens.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.token_measures import score_entropy
from schemas.number_schedules import ScheduledFloat

LIMIT = 20.0


def compute_clip_bounds(h_T: Tensor, epsilon: float, epsilon_high: float, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the clip bounds of each token: ε_high(1 + αh) for uncertain ones (h > 0), ε(1 − αh) for certain ones."""
    return epsilon * (1 - alpha * h_T.clamp(max=0)), epsilon_high * (1 + alpha * h_T.clamp(min=0))


def redistribute_advantages(advantage_T: Tensor, h_T: Tensor, ratio_T: Tensor, low_T: Tensor, high_T: Tensor) -> Tensor:
    """Return A(1 + h) for certain tokens with a ratio well inside the bounds and uncertain ones outside, else A."""
    inside_T = (ratio_T > 1 - low_T / 2) & (ratio_T < 1 + high_T / 2)
    return torch.where(inside_T == (h_T <= 0), advantage_T * (1 + h_T), advantage_T)


def heterogeneous(
    log_ratio_T: Tensor,
    advantage_T: Tensor,
    entropy_behav_T: Tensor,
    *,
    low: ScheduledFloat,
    pivot: ScheduledFloat,
    high: ScheduledFloat,
    epsilon: ScheduledFloat = 0.2,
    epsilon_high: ScheduledFloat = 0.28,
    adaptive_clip: bool = True,
    redistribute: bool = True,
    delta: Annotated[float, Field(gt=1)] | None = 10.0,
) -> Tensor:
    """PPO's clipped loss with bounds and advantages scaled by the entropy of each token (HAPO, Liu et al. 2025).

    `low`, `pivot` and `high` are the log-entropies at which h is −1, 0 and 1. `delta` is the bound of dual clip.
    """
    h_T = score_entropy(entropy_behav_T, low, pivot, high)
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    low_T, high_T = compute_clip_bounds(h_T if adaptive_clip else torch.zeros_like(h_T), epsilon, epsilon_high)
    if redistribute:
        advantage_T = redistribute_advantages(advantage_T, h_T, ratio_T.detach(), low_T, high_T)
    bounded_T = ratio_T.minimum(1 + high_T).maximum(1 - low_T)
    loss_T = -(ratio_T * advantage_T).minimum(bounded_T * advantage_T)
    if delta is None:
        return loss_T
    return loss_T.where(advantage_T >= 0, loss_T.minimum(-delta * advantage_T))
