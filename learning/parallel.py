"""One update on several ranks: weights come from the whole mini-batch, so ranks share its micro-batches and add up.

Every rank holds the mini-batch; the loss of a micro-batch is a plain sum, and so is that of the ranks.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import distributed, nn

Part = TypeVar("Part")


def my_share(parts: Sequence[Part]) -> list[Part]:
    """The parts that this rank computes; all of them without a process group."""
    if not distributed.is_initialized():
        return list(parts)
    return list(parts[distributed.get_rank() :: distributed.get_world_size()])


def add_up_gradients(model: nn.Module) -> None:
    """Sum the gradients over the ranks; a rank that had no part brings zeros, so that all ranks take part."""
    if not distributed.is_initialized():
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)


def add_up(numbers: Sequence[float]) -> list[float]:
    """Sums of numbers over the ranks."""
    if not distributed.is_initialized():
        return list(numbers)
    total: Any = torch.tensor(list(numbers), dtype=torch.float64)
    distributed.all_reduce(total)
    return total.tolist()
