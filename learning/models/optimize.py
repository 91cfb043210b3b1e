"""AdamW with the options of a recipe: weight decay on matrices only, warm-up, learning rate schedule, clipping."""

import math

import torch
from torch import nn

from learning.parallel.group import gather_shards
from schemas.errors import StepError
from schemas.training import Training


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter 2019) over the trainable parameters; norms and biases are not decayed."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=training.learning_rate, betas=betas, fused=True)


def learning_rate_at(training: Training, step: int, total_steps: int) -> float:
    """Return the learning rate of a step (0-based): linear warm-up over `warmup_ratio`, then the schedule down to 0."""
    warmup = math.ceil(training.warmup_ratio * total_steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, total_steps - warmup)
    factor = {"constant": 1.0, "linear": 1.0 - share, "cosine": (1 + math.cos(math.pi * share)) / 2}
    return training.learning_rate * factor[training.lr_scheduler_type]


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
