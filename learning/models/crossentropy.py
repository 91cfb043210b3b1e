"""Summed cross-entropy of completions: the caller divides by the number of tokens of the whole optimiser batch.

A mean per forward pass would give the tokens of short passes more weight. Shapes: M packed tokens, B rows, L longest
row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learning.data.examples import Example
from learning.models.packed import choose_forward, pack, packed_logprobs, unwrap
from schemas.errors import StepError

Loss = Callable[[Any, Sequence[Example]], Tensor]


def compute_packed_loss(model: Any, examples: Sequence[Example]) -> Tensor:
    """Return the sum of −log p over learned tokens, from one forward pass without padding or attention between rows.

    Raise StepError if the architecture's attention cannot be restricted to rows.
    """
    packed = pack([example.ids for example in examples], [-1] * len(examples))
    learn_M = torch.cat([torch.tensor(e.learned) for e in examples])
    logp_M, _ = packed_logprobs(model, packed.to(model.device), needed_M=learn_M)
    return -logp_M.sum()


def compute_padded_loss(model: Any, examples: Sequence[Example]) -> Tensor:
    """Return the same sum from right-padded rows, for architectures with other layers than attention."""
    longest = max(len(example.ids) for example in examples)
    ids_BL = torch.tensor([e.ids + [0] * (longest - len(e.ids)) for e in examples], device=model.device)
    real_BL = torch.tensor([[1] * len(e.ids) + [0] * (longest - len(e.ids)) for e in examples], device=model.device)
    rows = [e.learned + [False] * (longest - len(e.ids)) for e in examples]
    learn_BL = torch.tensor(rows, device=model.device)
    logits_BLV = model(input_ids=ids_BL, attention_mask=real_BL, use_cache=False).logits[:, :-1]
    dtype = torch.promote_types(logits_BLV.dtype, torch.float32)
    logp_BL = logits_BLV.to(dtype).log_softmax(-1).gather(2, ids_BL[:, 1:, None])[..., 0]
    return -logp_BL[learn_BL[:, 1:]].sum()


def choose_loss(model: Any, *, packing: bool) -> Loss:
    """Return the fastest exact loss for a model; raise StepError if `packing` is set and rows cannot be separated."""
    choice = choose_forward(unwrap(model))
    if choice.body == "forest":
        return compute_packed_loss
    if packing:
        raise StepError(f"packing: rows cannot be kept apart ({choice.reason}); set it to false")
    return compute_padded_loss
