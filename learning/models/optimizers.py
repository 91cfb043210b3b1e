"""Optimisers that torch does not have as a recipe names them: Lion, Muon with AdamW, and those with 8-bit state."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from learning.models.forwards import find_blocks
from learning.models.optimize import group_by_decay, make_adamw
from learning.parallel.group import gather_shards, shard_like
from schemas.errors import StepError
from schemas.training import Training

MUON_MOMENTUM = 0.95


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): the sign of an interpolated moment is the update."""

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closure is used here
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                moment = state["exp_avg"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(moment.lerp(gradient, 1 - beta1).sign_(), alpha=-group["lr"])
                moment.lerp_(gradient, 1 - beta2)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of blocks, AdamW for embeddings, heads, norms and biases.

    An update of Muon is scaled to the size of one of AdamW (Liu et al. 2025, arXiv 2502.16982, eq. 4), so that both use
    one learning rate. AdamW reads and writes the state and the groups of this optimiser.
    """

    def __init__(self, matrices: list[Tensor], others: list[Tensor], training: Training) -> None:
        self.adamw = make_adamw(others, training) if others else None
        rate, decay = training.learning_rate, training.weight_decay
        group = {"params": matrices, "lr": rate, "weight_decay": decay, "momentum": MUON_MOMENTUM}
        super().__init__([group, *(self.adamw.param_groups if self.adamw else [])], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore state and groups, also for AdamW."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let AdamW use the state and the groups of this optimiser."""
        if self.adamw is not None:
            self.adamw.param_groups, self.adamw.state = self.param_groups[1:], self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # no closure is used here
        """Update every parameter that has a gradient."""
        group, momentum = self.param_groups[0], self.param_groups[0]["momentum"]
        for parameter in group["params"]:
            if (gradient := parameter.grad) is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            moment = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            change = orthogonalise(gather_shards(gradient.lerp(moment, momentum)), group["lr"])
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(shard_like(parameter, change))
        if self.adamw is not None:
            self.adamw.step()


def orthogonalise(matrix: Tensor, learning_rate: float) -> Tensor:
    """Return the change of a weight by torch's Muon without momentum and decay: −learning_rate · 0.2·√max(m, n) · UVᵀ.

    The matrix is whole, so that every rank of a sharded model computes what one process would: products in bfloat16
    are not associative.
    """
    change = torch.zeros_like(matrix)
    change.grad = matrix
    muon = torch.optim.Muon(
        [change], lr=learning_rate, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw"
    )
    muon.step()
    return change.detach()


def make_lion(model: nn.Module, training: Training) -> Lion:
    """Return Lion over the trainable parameters."""
    groups = group_by_decay(_list_trainable(model), training.weight_decay)
    return Lion(groups, training.learning_rate, (training.adam_beta1, training.adam_beta2))


def make_muon(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return Muon over the trainable matrices of blocks, with AdamW over the rest; AdamW alone without matrices."""
    trainable = _list_trainable(model)
    matrices = list_block_matrices(find_blocks(model))
    chosen = set(map(id, matrices))
    others = [p for p in trainable if id(p) not in chosen]
    return MuonWithAdamW(matrices, others, training) if matrices else make_adamw(trainable, training)


def make_eight_bit(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return an optimiser with block-wise 8-bit state (Dettmers et al. 2022, arXiv 2110.02861) of bitsandbytes.

    Raise StepError if bitsandbytes is not installed.
    """
    try:
        bitsandbytes = import_module("bitsandbytes")  # optional, and slow to import
    except ImportError as error:
        raise StepError(
            f"optim: {training.optim} needs bitsandbytes, which is not installed here: "
            "pip install 'posttrain[bitsandbytes]'"
        ) from error
    betas = (training.adam_beta1, training.adam_beta2)
    kinds: Mapping[str, Any] = {"adamw_8bit": bitsandbytes.optim.AdamW8bit, "lion_8bit": bitsandbytes.optim.Lion8bit}
    groups = group_by_decay(_list_trainable(model), training.weight_decay)
    return kinds[training.optim](groups, lr=training.learning_rate, betas=betas)


def _list_trainable(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def list_block_matrices(blocks: Iterable[nn.Module]) -> list[Tensor]:
    """Return the trainable matrices of a model's blocks, in order, each once."""
    matrices = {id(p): p for block in blocks for p in block.parameters() if p.requires_grad and p.ndim == 2}
    return list(matrices.values())
