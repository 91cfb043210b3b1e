"""The optimiser of a recipe over a model: weight decay on matrices only, and clipping of gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learning.lookup import load_optional
from learning.parallel.group import gather_shards
from schemas.errors import StepError
from schemas.training import WHOLE_ONLY, Training


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the optimiser over the trainable parameters; norms and biases are not decayed.

    AdamW: Loshchilov & Hutter 2019. Adafactor: Shazeer & Stern 2018 (arXiv 1804.04235), as torch has it. Raise
    StepError if an optimiser cannot be had here.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if training.optim == "adamw":
        return make_adamw(trainable, training)
    if training.optim in WHOLE_ONLY and any(hasattr(p, "full_tensor") for p in trainable):
        raise StepError(
            f"optim: {training.optim} cannot update sharded weights; use strategy ddp, or another optimiser"
        )
    if (make_other := load_optional(training, "optimizer")) is not None:
        return make_other(model, training)
    return torch.optim.Adafactor(group_by_decay(trainable, training.weight_decay), lr=training.learning_rate)


def make_adamw(parameters: Sequence[Tensor], training: Training) -> torch.optim.AdamW:
    """Return AdamW over some parameters."""
    groups, betas = group_by_decay(parameters, training.weight_decay), (training.adam_beta1, training.adam_beta2)
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, fused=True)


def group_by_decay(parameters: Sequence[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimiser that decays matrices only."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def clip_gradients(model: nn.Module, max_norm: float | None) -> float:
    """Scale gradients down to `max_norm` and return their global norm before that.

    Raise StepError if the norm is not finite: the step would destroy the weights.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    limit = math.inf if max_norm is None else max_norm
    norm = float(gather_shards(nn.utils.clip_grad_norm_(parameters, limit)))
    if not math.isfinite(norm):
        raise StepError(f"the gradient is not finite (norm {norm}); lower learning_rate, or look at the data")
    return norm
