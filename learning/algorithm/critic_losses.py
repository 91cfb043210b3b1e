"""Per-token losses of a critic; the loop takes the mean over the trained tokens.

Shapes: T sampled tokens.
"""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from schemas.number_schedules import ScheduledFloat


def squared(value_T: Tensor, value_old_T: Tensor, return_T: Tensor, *, clip: ScheduledFloat | None = None) -> Tensor:
    """Squared error ½(V − R)²; with `clip` the larger of it and that of V clipped to V_old ± clip (PPO's code)."""
    loss_T = (value_T - return_T).square() / 2
    if clip is None:
        return loss_T
    clipped_T = value_old_T + (value_T - value_old_T).clamp(-clip, clip)
    return loss_T.maximum((clipped_T - return_T).square() / 2)


def whole_squared(value_T: Tensor, return_T: Tensor, *, weight: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """Squared error weight·(V − R)², without the half of `squared`."""
    return weight * (value_T - return_T).square()


def huber(
    value_T: Tensor,
    value_old_T: Tensor,
    return_T: Tensor,
    *,
    delta: Annotated[float, Field(gt=0)] = 1.0,
    clip: ScheduledFloat | None = None,
) -> Tensor:
    """Huber loss: ½(V − R)² within `delta`, linear outside (Huber 1964).

    With `clip` the mean of it and that of V clipped to V_old ± clip (SAFE, Maity 2026).
    """
    loss_T = F.huber_loss(value_T, return_T, delta=delta, reduction="none")
    if clip is None:
        return loss_T
    clipped_T = value_old_T + (value_T - value_old_T).clamp(-clip, clip)
    return (loss_T + F.huber_loss(clipped_T, return_T, delta=delta, reduction="none")) / 2


def logistic(value_T: Tensor, return_T: Tensor) -> Tensor:
    """Binary cross-entropy: V is the log-odds of a result R from 0 to 1."""
    return F.binary_cross_entropy_with_logits(value_T, return_T, reduction="none")
