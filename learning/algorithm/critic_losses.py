"""Per-token losses of a critic; the mean over the tokens it is trained on is taken by the loop.

Shapes: T sampled tokens.
"""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from schemas.schedules import ScheduledFloat


def squared(value_T: Tensor, value_old_T: Tensor, return_T: Tensor, *, clip: ScheduledFloat | None = None) -> Tensor:
    """½(V − R)²; with `clip`, the larger of it and that of V held within ±clip of its old value (PPO's code)."""
    loss_T = (value_T - return_T).square() / 2
    if clip is None:
        return loss_T
    held_T = value_old_T + (value_T - value_old_T).clamp(-clip, clip)
    return loss_T.maximum((held_T - return_T).square() / 2)


def huber(value_T: Tensor, return_T: Tensor, *, delta: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """½(V − R)² within `delta`, linear outside (Huber 1964)."""
    return F.huber_loss(value_T, return_T, delta=delta, reduction="none")


def logistic(value_T: Tensor, return_T: Tensor) -> Tensor:
    """−R·ln σ(V) − (1 − R)·ln σ(−V): V is the log-odds of a result R from 0 to 1 (cross-entropy)."""
    return F.binary_cross_entropy_with_logits(value_T, return_T, reduction="none")
