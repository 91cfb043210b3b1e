"""Key-value cache of the torch engine: one slab of rows per layer, each row a slot with its own length.

A row's column is the position of its token, so slots never need padding; a new occupant of a slot overwrites the old
one. Prompts are computed right-padded in a batch and copied into as many slots as they have samples.

Shapes: B rows in use, S slots, L columns, H key-value heads, G queries per head, D width of a head, T tokens at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from learning.models.forwards import evaluation_mode
from schemas.errors import StepError

NAME = "posttrain_slots"


class Prefix(Cache):
    """Keys and values of a batch of right-padded prompts, one pair (R, H, T, D) per layer."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values."""
        self.pairs.append((key_states, value_states))
        return key_states, value_states


class Slots(Cache):
    """The slabs: `aim` sets the position of every row's next token; the model then calls `update` layer by layer."""

    def __init__(self, num_slots: int, num_columns: int, device: str | torch.device) -> None:
        super().__init__(layers=[])
        self.slabs: list[tuple[Tensor, Tensor]] = []
        self.num_columns = num_columns
        self.bias_SL = torch.full((num_slots, num_columns), float("-inf"), device=device)
        """0 where a slot holds a token, −inf elsewhere: added to the attention scores."""
        self.row_B = self.position_B = torch.zeros(0, dtype=torch.long, device=device)
        self.columns = 0

    def aim(self, position_B: Tensor) -> Tensor:
        """Set the positions of the next tokens of rows 0..B−1; return the bias of their attention (B, 1, 1, L)."""
        rows = len(position_B)
        self.row_B, self.position_B = torch.arange(rows, device=position_B.device), position_B
        self.bias_SL[self.row_B, position_B] = 0.0
        self.columns = int(position_B.max()) + 1
        return self.bias_SL[:rows, None, None, : self.columns]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store one token (B, H, 1, D) per row; return all keys and values of the rows (B, H, L, D)."""
        if len(self.slabs) <= layer_idx:
            self.slabs.append((self._slab(key_states), self._slab(value_states)))
        stored = []
        rows, heads = key_states.shape[:2]
        head_H = torch.arange(heads, device=key_states.device)
        at_X = ((self.row_B[:, None] * heads + head_H) * self.num_columns + self.position_B[:, None]).flatten()
        for slab_SHLD, new_BHTD in zip(self.slabs[layer_idx], (key_states, value_states), strict=True):
            width = new_BHTD.shape[-1]  # of values it may differ from that of keys
            slab_SHLD.view(-1, width).index_copy_(0, at_X, new_BHTD.reshape(-1, width))
            stored.append(slab_SHLD[:rows, :, : self.columns])
        return stored[0], stored[1]

    def place(self, slots_X: Tensor, prefix: Prefix | None, source_X: Tensor, lengths_X: Tensor) -> None:
        """Fill slots with the first `lengths_X` columns of rows `source_X` of a prefix; without one, empty them."""
        column_L = torch.arange(self.num_columns, device=lengths_X.device)
        self.bias_SL[slots_X] = torch.where(column_L < lengths_X[:, None], 0.0, float("-inf"))
        if prefix is None:
            return
        for layer, pair in enumerate(prefix.pairs):
            if len(self.slabs) <= layer:
                self.slabs.append((self._slab(pair[0]), self._slab(pair[1])))
            for slab_SHLD, states_RHTD in zip(self.slabs[layer], pair, strict=True):
                slab_SHLD[slots_X, :, : states_RHTD.shape[2]] = states_RHTD[source_X]

    def move(self, from_X: Tensor, to_X: Tensor) -> None:
        """Copy rows, so that those in use are adjacent."""
        self.bias_SL[to_X] = self.bias_SL[from_X]
        for pair in self.slabs:
            for slab_SHLD in pair:
                slab_SHLD[to_X, :, : self.columns] = slab_SHLD[from_X, :, : self.columns]

    def grow(self, num_slots: int, num_columns: int) -> None:
        """Make room for more slots and longer sequences; the contents of the slots stay."""
        old_SL, self.num_columns = self.bias_SL, num_columns
        self.bias_SL = old_SL.new_full((num_slots, num_columns), float("-inf"))
        self.bias_SL[: old_SL.shape[0], : old_SL.shape[1]] = old_SL
        for layer, pair in enumerate(self.slabs):
            grown = tuple(self._slab(slab_SHLD) for slab_SHLD in pair)
            for new_SHLD, slab_SHLD in zip(grown, pair, strict=True):
                new_SHLD[: slab_SHLD.shape[0], :, : slab_SHLD.shape[2]] = slab_SHLD
            self.slabs[layer] = (grown[0], grown[1])

    def _slab(self, like_BHTD: Tensor) -> Tensor:
        heads, width = like_BHTD.shape[1], like_BHTD.shape[3]
        return like_BHTD.new_zeros(len(self.bias_SL), heads, self.num_columns, width)


def prefill(model: Any, ids_RT: Tensor) -> Prefix:
    """Return keys and values of right-padded prompts (R, T)."""
    prefix = Prefix()
    positions = torch.arange(ids_RT.shape[1], device=ids_RT.device)[None]
    model.base_model(input_ids=ids_RT, position_ids=positions, past_key_values=prefix, use_cache=True)
    return prefix


def compute_slot_logits(model: Any, slots: Slots, token_B: Tensor, position_B: Tensor) -> Tensor:
    """Run the model on one token per row at its position; return the logits (B, V) after it."""
    return model(
        input_ids=token_B[:, None],
        position_ids=position_B[:, None],
        past_key_values=slots,
        use_cache=True,
        slot_bias=slots.aim(position_B),
    ).logits[:, -1]


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_bias: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Return attention of prompts (causal, `slot_bias` None) or of one new token per slot, over (B, heads, T, D).

    Queries that share a key-value head take the place of the token dimension, so that keys are never repeated. Raise
    StepError for features that it does not implement: sliding windows, softcapped scores and attention sinks.
    """
    if ignored.get("softcap") is not None or ignored.get("s_aux") is not None or sliding_window:
        raise StepError(
            "engine torch: attention over slots supports no sliding windows, softcapped scores or sinks; "
            "use another engine for this model"
        )
    if slot_bias is None:
        grouped = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
        return out.transpose(1, 2), None
    rows, heads = query.shape[:2]
    query_BHGD = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
    out_BHGD = scaled_dot_product_attention(query_BHGD, key, value, attn_mask=slot_bias.to(query.dtype), scale=scaling)
    return out_BHGD.reshape(rows, 1, heads, -1), None


AttentionInterface.register(NAME, slot_attention)


@contextmanager
def use_slot_attention(model: Any) -> Iterator[None]:
    """Within the context the model is in evaluation mode and uses attention over slots."""
    implementation = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        with evaluation_mode(model):
            yield
    finally:
        model.config._attn_implementation = implementation
