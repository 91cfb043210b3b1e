"""Summed cross-entropy of completions: the caller divides by the number of tokens of the whole optimiser batch.

A mean per forward pass would give the tokens of short passes more weight. Shapes: M packed tokens.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from learning.data.examples import Example
from learning.models.forwards import unwrap
from learning.models.packed import Body, choose_forward, pack, packed_statistics
from schemas.errors import StepError


class Loss(Protocol):
    """Sum of −log p over the learned tokens of rows.

    Lists that are given receive a number per row: `rows` its sum, `right` how many of its learned tokens the model
    finds likeliest.
    """

    def __call__(
        self,
        model: Any,
        examples: Sequence[Example],
        rows: list[float] | None = None,
        right: list[float] | None = None,
    ) -> Tensor:
        """Return the sum of all rows, with its gradient."""
        ...


def compute_packed_loss(
    model: Any, examples: Sequence[Example], rows: list[float] | None = None, right: list[float] | None = None
) -> Tensor:
    """Return the sum of −log p over learned tokens, from one forward pass without padding or attention between rows."""
    return _sum_losses(model, examples, None, rows, right)


def compute_padded_loss(
    model: Any, examples: Sequence[Example], rows: list[float] | None = None, right: list[float] | None = None
) -> Tensor:
    """Return the same sum from right-padded rows, for architectures with other layers than attention."""
    return _sum_losses(model, examples, "padded", rows, right)


def _sum_losses(
    model: Any, examples: Sequence[Example], body: Body | None, rows: list[float] | None, right: list[float] | None
) -> Tensor:
    """Return the sum of −log p over learned tokens; logits are computed in chunks, of learned tokens only."""
    packed = pack([example.ids for example in examples], [-1] * len(examples))
    learn_M = torch.tensor([learned for example in examples for learned in example.learned])
    watched = () if right is None else ("likeliest",)
    statistics = packed_statistics(model, packed.to(model.device), watched=watched, needed_M=learn_M, body=body)
    sizes = [len(example.ids) for example in examples]
    for numbers, name, sign in ((rows, "lp", -1), (right, "likeliest", 1)):
        if numbers is not None:
            parts = statistics[name].detach().double().split(sizes)
            numbers += (sign * torch.stack([part.sum() for part in parts])).tolist()
    return -statistics["lp"].sum()


def choose_loss(model: Any, *, packing: bool) -> Loss:
    """Return the fastest exact loss for a model; raise StepError if `packing` is set and rows cannot be separated."""
    choice = choose_forward(unwrap(model))
    if choice.body == "forest":
        return compute_packed_loss
    if packing:
        raise StepError(f"packing: rows cannot be kept apart ({choice.reason}); set it to false")
    return compute_padded_loss
