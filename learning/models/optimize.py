"""The optimiser of a recipe over a model: weight decay on matrices only, and clipping of gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learning.models.forwards import find_blocks
from learning.models.optimizers import Lion, MuonWithAdamW, list_block_matrices, make_eight_bit
from learning.parallel.group import gather_shards
from schemas.errors import StepError
from schemas.training import WHOLE_ONLY, Training


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the optimiser over the trainable parameters; norms and biases are not decayed.

    AdamW: Loshchilov & Hutter 2019. Adafactor: Shazeer & Stern 2018 (arXiv 1804.04235), as torch has it. Raise
    StepError if an optimiser cannot be had here.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = _group_by_decay(trainable, training.weight_decay)
    rate, betas = training.learning_rate, (training.adam_beta1, training.adam_beta2)
    if training.optim == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)
    if training.optim in WHOLE_ONLY and any(hasattr(p, "full_tensor") for p in trainable):
        raise StepError(
            f"optim: {training.optim} cannot update sharded weights; use strategy ddp, or another optimiser"
        )
    if training.optim == "adafactor":
        return torch.optim.Adafactor(groups, lr=rate)
    if training.optim == "lion":
        return Lion(groups, rate, betas)
    if training.optim != "muon":
        return make_eight_bit(groups, training)
    if not (matrices := list_block_matrices(find_blocks(model))):
        return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)
    chosen = set(map(id, matrices))
    others = _group_by_decay([p for p in trainable if id(p) not in chosen], training.weight_decay)
    return MuonWithAdamW(matrices, others, training)


def _group_by_decay(parameters: Sequence[Tensor], weight_decay: float) -> list[dict[str, Any]]:
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
