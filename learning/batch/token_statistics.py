"""Statistics of the sampled tokens of a micro-batch from one forward pass.

Shapes: T sampled tokens, M packed tokens.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from learning.batch.batch import Batch
from learning.models.packed import packed_statistics


@torch.no_grad()
def compute_token_statistics(
    model: Any, micro: Batch, names: tuple[str, ...], *, temperature: float, replay: bool = False
) -> dict[str, Tensor]:
    """Return statistics (T,) in float64 of the sampled tokens of one micro-batch: one forward pass."""
    with micro.routed(model) if replay else nullcontext():
        columns = packed_statistics(
            model,
            micro.packed.to(model.device),
            followed=names,
            temperature=temperature,
            needed_M=micro.tokens["learn"],
        )
    return {name: column_M.cpu()[micro.sampled_T].double() for name, column_M in columns.items()}
