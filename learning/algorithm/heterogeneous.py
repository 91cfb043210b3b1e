"""Every token by its own nature: HAPO (Liu et al. 2025) follows the entropy at which a token was sampled.

A token's score h in [−1, 1] says where the logarithm of its entropy lies: −1 at the lowest of the batch, 0 at a
pivot (a quantile), 1 at the highest, straight lines in between. The three numbers are controllers of the stage, so
that the loss of a micro-batch does not depend on the rest of its batch.
Shapes: T sampled tokens, B sequences being sampled, V vocabulary.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from schemas.schedules import ScheduledFloat

LIMIT = 20.0
FLOOR = 1e-8
"""Nats below which an entropy counts as this, before its logarithm is taken."""


def log_entropy_quantile(entropy_behav_T: Tensor, *, q: Annotated[float, Field(ge=0, le=1)]) -> float:
    """A quantile of the logarithms of the tokens' entropies (nearest value, none made up); a controller of HAPO."""
    if not len(entropy_behav_T):
        return 0.0
    return float(entropy_behav_T.double().clamp(min=FLOOR).log().quantile(q, interpolation="nearest"))


def entropy_score(entropy_X: Tensor, low: float, pivot: float, high: float) -> Tensor:
    """h of each entropy (nats): −1 at log-entropy `low`, 0 at `pivot`, 1 at `high`, held within these bounds."""
    gap_X = entropy_X.clamp(min=FLOOR).log() - pivot
    above_X, below_X = gap_X / max(high - pivot, FLOOR), gap_X / max(pivot - low, FLOOR)
    return torch.where(gap_X > 0, above_X, below_X).clamp(-1, 1)


def adaptive_bounds(h_T: Tensor, epsilon: float, epsilon_high: float, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Clip bounds of each token: ε_high(1 + αh) where it is uncertain (h > 0), ε(1 − αh) where it is certain."""
    return epsilon * (1 - alpha * h_T.clamp(max=0)), epsilon_high * (1 + alpha * h_T.clamp(min=0))


def redistributed(advantage_T: Tensor, h_T: Tensor, ratio_T: Tensor, low_T: Tensor, high_T: Tensor) -> Tensor:
    """A(1 + h) for certain tokens whose ratio is well inside the bounds and for uncertain ones whose ratio is not."""
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
    """Clipped surrogate whose bounds and advantages follow the entropy of each token (HAPO, Liu et al. 2025).

    `low`, `pivot` and `high` are the log-entropies at which h is −1, 0 and 1. `delta` is that of dual clip.
    """
    h_T = entropy_score(entropy_behav_T, low, pivot, high)
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    low_T, high_T = adaptive_bounds(h_T if adaptive_clip else torch.zeros_like(h_T), epsilon, epsilon_high)
    if redistribute:
        advantage_T = redistributed(advantage_T, h_T, ratio_T.detach(), low_T, high_T)
    bounded_T = ratio_T.minimum(1 + high_T).maximum(1 - low_T)
    loss_T = -(ratio_T * advantage_T).minimum(bounded_T * advantage_T)
    if delta is None:
        return loss_T
    return loss_T.where(advantage_T >= 0, loss_T.minimum(-delta * advantage_T))
