"""The optimiser of a recipe over a model, the learning rate of a step, and clipping of gradients.

Weight decay applies to matrices only. The learning rate warms up, then is constant, falls linearly or as a cosine, or
is stable with a decay at the end.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learning.lookup import load_optional
from learning.parallel.group import gather_shards
from schemas.errors import StepError
from schemas.schedule_phases import count_decay_steps, count_warmup_steps, find_schedule_problem
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


DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "cosine_with_min_lr": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "1-sqrt": lambda share: 1.0 - math.sqrt(share),
}
"""Factor by the share of a decay that has passed, from 1 at its beginning to 0 at its end."""


def learning_rate_at(training: Training, step: int, total_steps: int) -> float:
    """Return the learning rate of a step (0-based).

    It rises linearly over the warm-up, then follows the schedule down to `min_lr_ratio` of the peak. Stable phase and
    decay: Hu et al. 2024 (arXiv 2404.06395); 1-sqrt: Hägele et al. 2024 (arXiv 2405.18392). Raise StepError if the
    phases do not fit into the steps.
    """
    if problem := find_schedule_problem(training, total_steps):
        raise StepError(problem)
    warmup = count_warmup_steps(training, total_steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    decay = _decay_factor(training, step, warmup, total_steps)
    return training.learning_rate * (training.min_lr_ratio + (1.0 - training.min_lr_ratio) * decay)


def _decay_factor(training: Training, step: int, warmup: int, total_steps: int) -> float:
    """Return the factor of a step after the warm-up, without the floor: 1 before a decay, towards 0 in it."""
    kind = training.lr_scheduler_type
    if kind == "constant":
        return 1.0
    if kind != "warmup_stable_decay":
        return DECAYS[kind]((step - warmup) / max(1, total_steps - warmup))
    start = max(warmup, total_steps - count_decay_steps(training, total_steps))
    return 1.0 if step < start else DECAYS[training.decay_type]((step - start) / (total_steps - start))
