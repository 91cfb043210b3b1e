"""Cache of the torch engine: rows of keys, values and states, each row a slot with its own length.

Keys and values lie in one slab per layer; a row's column is the position of its token, so slots never need padding.
States of linear attention, state spaces and convolutions have one row per slot. A new occupant of a slot overwrites the
old one. Prompts are computed in a batch and copied into as many slots as they have samples. With `shares`, their keys
and values stay where they are, once for all samples of a prompt, and a slot holds only the tokens that come after it.
Columns are added as tokens need them: attention reads a slab faster the closer its rows lie together.

Shapes: B rows in use, S slots, L columns, H key-value heads, D width of a head, T tokens at once, R prompts.
"""

import inspect
import math
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from learning.models.forwards import find_blocks

StateName = Literal["conv_states", "recurrent_states"]
STEP = 64
"""Slabs have a multiple of this number of columns."""


class Filled(Exception):
    """Raised to end a forward pass when a cache has the keys and values of all layers."""


def has_states(model: Any) -> bool:
    """Return whether a model has layers that keep a state instead of keys and values."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers)


def find_last_layer(model: Any) -> int | None:
    """Return the layer whose keys and values are the last that a forward pass makes, or None.

    What the pass computes after them, the last layer's attention and feed-forward block, is in no cache. None where
    states may follow, and where blocks are not numbered in order: a pass may go through them again.
    """
    blocks = find_blocks(model)
    numbers = [getattr(part, "layer_idx", None) for block in blocks for part in block.children()]
    numbers = [number for number in numbers if number is not None]
    return len(blocks) - 1 if not has_states(model) and numbers == list(range(len(blocks))) else None


def _make_state_holders(model: Any) -> list[LinearAttentionLayer]:
    """Return an empty holder of states for every layer; those of plain attention stay empty."""
    layers = DynamicCache(config=model.config).layers
    return [LinearAttentionLayer(getattr(layer, "number_of_states", 1)) for layer in layers]


class Prefix(Cache):
    """A batch of prompts: keys and values (R, H, T, D) of each layer that has them, and the states of the others."""

    def __init__(self, model: Any) -> None:
        self.holders = _make_state_holders(model)
        super().__init__(layers=[*self.holders])
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}
        self.last = find_last_layer(model)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values; raise Filled after those of the last layer."""
        self.pairs[layer_idx] = key_states, value_states
        if layer_idx == self.last:
            raise Filled
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: the positions of tokens are given to the model."""
        return 0

    def list_states(self) -> dict[tuple[int, StateName, int], Tensor]:
        """Return the states (R, …) by layer, kind and number."""
        names: tuple[StateName, ...] = ("conv_states", "recurrent_states")
        return {
            (index, name, number): state
            for index, holder in enumerate(self.holders)
            for name in names
            for number, state in getattr(holder, name).items()
            if state is not None
        }


@dataclass(frozen=True)
class PromptGroup:
    """Prompts of a prefix, and the slots that continue each of them (R·N): a slot is repeated where there are fewer."""

    pairs: dict[int, tuple[Tensor, Tensor]]
    """Keys and values (R, H, T, D) by layer."""
    length_R: Tensor
    slot_X: Tensor


def pad_columns(columns: int) -> int:
    """Return the next multiple of STEP."""
    return -(-columns // STEP) * STEP


class Slots(Cache):
    """The slabs: `aim` sets the position of every row's next token; the model then calls `update` layer by layer.

    `most_columns` is the number of tokens that a slot can hold; slabs have as many columns as are needed so far.
    """

    def __init__(self, model: Any, num_slots: int, most_columns: int, *, shares: bool = False) -> None:
        super().__init__(layers=[])
        device = next(model.parameters()).device
        self.slabs: dict[int, tuple[Tensor, Tensor]] = {}
        self.states: dict[tuple[int, StateName, int], Tensor] = {}
        """States of all slots (S, …) by layer, kind and number; empty until a prompt shows their shapes."""
        self.keeps_states = has_states(model)
        self.most_columns, self.num_columns = pad_columns(most_columns), 0
        self.bias_SL = torch.zeros(num_slots, 0, device=device)
        """0 where a slot holds a token, −inf elsewhere: added to the attention scores."""
        self.row_B = self.position_B = self.column_B = torch.zeros(0, dtype=torch.long, device=device)
        self.shares = shares
        self.begin_S = torch.zeros(num_slots, dtype=torch.long, device=device)
        """Tokens of the shared prompt of each slot: the position of its column 0."""
        self.shared: dict[int, tuple[Prefix, int, int]] = {}
        """The prefix, row and length of the shared prompt of each slot that has one."""
        self.groups: list[PromptGroup] = []
        self.origin_B = self.begin_S[:0]
        """The place of each row among the results of all groups; the one after the last for a row without a prompt."""
        self.grouped = 0
        self.layer = 0
        """The layer whose keys and values were last updated."""
        self.columns = 0
        self.windowed: dict[int, Tensor] = {}

    def aim(self, position_B: Tensor) -> None:
        """Set the positions of the next tokens of rows 0..B−1."""
        rows = len(position_B)
        self.row_B, self.position_B = torch.arange(rows, device=position_B.device), position_B
        # The position of an empty row is 0, whatever prompt it continued.
        self.column_B = (position_B - self.begin_S[:rows]).clamp(min=0) if self.shares else position_B
        self.columns = int(self.column_B.max()) + 1
        self.reserve(self.columns)
        self.bias_SL[self.row_B, self.column_B] = 0.0
        if self.shares and self.grouped != rows:
            self._group(rows)
        self.windowed = {}
        for (layer, name, number), state in self.states.items():
            getattr(self.layers[layer], name)[number] = state[:rows]  # the model writes into this view

    def compute_bias(self, window: int | None, *, padded: bool = False) -> Tensor:
        """Return what is added to attention scores (B, 1, 1, L): −inf for keys that a row's next token does not see.

        `window` is the number of keys that it sees, itself included. L is the number of columns in use; `padded`, it is
        the next multiple of STEP.
        """
        bias_BL = self.bias_SL[: len(self.row_B), : pad_columns(self.columns)]
        if window and window < self.columns:
            if window not in self.windowed:
                column_L = torch.arange(bias_BL.shape[1], device=bias_BL.device)
                far_BL = column_L <= self.column_B[:, None] - window
                self.windowed[window] = bias_BL.masked_fill(far_BL, float("-inf"))
            bias_BL = self.windowed[window]
        return (bias_BL if padded else bias_BL[:, : self.columns])[:, None, None]

    def holds(self, key: Tensor, value: Tensor) -> bool:
        """Return whether keys and values are those of the present layer's slabs, not something made of them."""
        pairs = zip((key, value), self.slabs[self.layer], strict=True)
        return all(x.data_ptr() == slab.data_ptr() and x.stride() == slab.stride() for x, slab in pairs)

    def list_padded(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, H, L, D) of the present layer, with L the next multiple of STEP."""
        keys_SHLD, values_SHLD = self.slabs[self.layer]
        rows, columns = len(self.row_B), pad_columns(self.columns)
        return keys_SHLD[:rows, :, :columns], values_SHLD[:rows, :, :columns]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store one token (B, H, 1, D) per row; return all keys and values of the rows (B, H, L, D)."""
        if layer_idx not in self.slabs:
            self.slabs[layer_idx] = self._slab(key_states), self._slab(value_states)
        stored = []
        rows, heads = key_states.shape[:2]
        head_H = torch.arange(heads, device=key_states.device)
        at_X = ((self.row_B[:, None] * heads + head_H) * self.num_columns + self.column_B[:, None]).flatten()
        self.layer = layer_idx
        for slab_SHLD, new_BHTD in zip(self.slabs[layer_idx], (key_states, value_states), strict=True):
            width = new_BHTD.shape[-1]  # of values it may differ from that of keys
            slab_SHLD.view(-1, width).index_copy_(0, at_X, new_BHTD.reshape(-1, width))
            stored.append(slab_SHLD[:rows, :, : self.columns])
        return stored[0], stored[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: the positions of tokens are given to the model."""
        return 0

    def place(self, slots_X: Tensor, prefix: Prefix | None, source_X: Tensor, lengths_X: Tensor) -> None:
        """Fill slots with the first `lengths_X` columns of rows `source_X` of a prefix; without one, empty them."""
        if self.shares:
            self._share(slots_X, prefix, source_X, lengths_X)
            lengths_X = torch.zeros_like(lengths_X)
        columns = int(lengths_X.max())
        self.reserve(columns)
        column_L = torch.arange(self.num_columns, device=lengths_X.device)
        self.bias_SL[slots_X] = torch.where(column_L < lengths_X[:, None], 0.0, float("-inf"))
        if prefix is None:
            for state in self.states.values():
                state[slots_X] = 0.0
            return
        each_once = prefix.pairs and source_X.tolist() == list(range(len(next(iter(prefix.pairs.values()))[0])))
        for layer, pair in prefix.pairs.items() if not self.shares else ():
            if layer not in self.slabs:
                self.slabs[layer] = self._slab(pair[0]), self._slab(pair[1])
            for slab_SHLD, states_RHTD in zip(self.slabs[layer], pair, strict=True):
                states_XHTD = states_RHTD if each_once else states_RHTD[source_X]
                slab_SHLD[slots_X, :, :columns] = states_XHTD[:, :, :columns]
        self.make_states(prefix)
        for at, state in prefix.list_states().items():
            self.states[at][slots_X] = state[source_X]

    def _share(self, slots_X: Tensor, prefix: Prefix | None, source_X: Tensor, lengths_X: Tensor) -> None:
        """Let slots continue rows of a prefix, or nothing."""
        self.begin_S[slots_X] = lengths_X if prefix is not None else 0
        for slot, row, length in zip(slots_X.tolist(), source_X.tolist(), lengths_X.tolist(), strict=True):
            self.shared.pop(slot, None)
            if prefix is not None:
                self.shared[slot] = prefix, row, length
        self.grouped = 0

    def _group(self, rows: int) -> None:
        """Group the first slots by the prompts that they continue."""
        self.shared = {slot: prompt for slot, prompt in self.shared.items() if slot < rows}
        device, none = self.begin_S.device, -1
        prefixes: dict[int, dict[int, list[int]]] = {}
        for slot, (prefix, row, _) in sorted(self.shared.items()):
            prefixes.setdefault(id(prefix), {}).setdefault(row, []).append(slot)
        self.groups, origins, place = [], [none] * rows, 0
        for prompts in prefixes.values():
            prefix = self.shared[next(iter(prompts.values()))[0]][0]
            most, chosen = max(map(len, prompts.values())), torch.tensor(list(prompts), device=device)
            whole = all(list(prompts) == list(range(len(keys))) for keys, _ in prefix.pairs.values())
            pairs = {layer: (k[chosen], v[chosen]) for layer, (k, v) in prefix.pairs.items() if not whole}
            for number, slots in enumerate(prompts.values()):
                for i, slot in enumerate(slots):
                    origins[slot] = place + number * most + i
            place += most * len(prompts)
            padded = [slot for slots in prompts.values() for slot in [*slots, *slots[:1] * (most - len(slots))]]
            lengths = [self.shared[slots[0]][2] for slots in prompts.values()]
            self.groups.append(
                PromptGroup(
                    prefix.pairs if whole else pairs,
                    torch.tensor(lengths, device=device),
                    torch.tensor(padded, device=device),
                )
            )
        self.origin_B = torch.tensor([place if at == none else at for at in origins], device=device)
        self.grouped = rows

    def make_states(self, prefix: Prefix) -> None:
        """Make states of zeros for all slots, of the shapes of a prefix, unless there are some."""
        if self.states or not self.keeps_states:
            return
        holders = [copy(holder) for holder in prefix.holders]
        for holder in holders:
            holder.conv_states, holder.recurrent_states = dict(holder.conv_states), dict(holder.recurrent_states)
        self.layers = [*holders]
        for at, state in prefix.list_states().items():
            self.states[at] = state.new_zeros(len(self.bias_SL), *state.shape[1:])

    def move(self, from_X: Tensor, to_X: Tensor) -> None:
        """Copy rows, so that those in use are adjacent."""
        self.bias_SL[to_X], self.begin_S[to_X] = self.bias_SL[from_X], self.begin_S[from_X]
        for source, target in zip(from_X.tolist(), to_X.tolist(), strict=True):
            self.shared.pop(target, None)
            if source in self.shared:
                self.shared[target] = self.shared.pop(source)
        self.grouped = 0
        for pair in self.slabs.values():
            for slab_SHLD in pair:
                slab_SHLD[to_X, :, : self.columns] = slab_SHLD[from_X, :, : self.columns]
        for state in self.states.values():
            state[to_X] = state[from_X]

    def reserve(self, columns: int, *, keeps: bool = True) -> None:
        """Use at least that many columns; with `keeps`, the contents of the slots stay."""
        if columns <= self.num_columns:
            return
        wanted = pad_columns(columns + columns // 8)  # so that copying costs little next to the tokens in between
        self.most_columns = max(pad_columns(columns), self.most_columns)
        self._resize(len(self.bias_SL), min(wanted, self.most_columns), keeps=keeps)

    def grow(self, num_slots: int, most_columns: int) -> None:
        """Make room for more slots and allow longer sequences; the contents of the slots stay."""
        self.most_columns = max(pad_columns(most_columns), self.most_columns)
        if num_slots > len(self.bias_SL):
            self._resize(num_slots, self.num_columns, keeps=True)

    def _resize(self, num_slots: int, num_columns: int, *, keeps: bool) -> None:
        old_SL, self.num_columns = self.bias_SL, num_columns
        self.bias_SL = old_SL.new_full((num_slots, num_columns), float("-inf"))
        self.begin_S = torch.cat([self.begin_S, self.begin_S.new_zeros(num_slots - len(self.begin_S))])
        if keeps:
            self.bias_SL[: old_SL.shape[0], : old_SL.shape[1]] = old_SL
        for layer, (keys_SHLD, values_SHLD) in self.slabs.items():
            self.slabs[layer] = self._resize_slab(keys_SHLD, keeps), self._resize_slab(values_SHLD, keeps)
        for at, state in self.states.items():
            self.states[at] = state.new_zeros(num_slots, *state.shape[1:])
            self.states[at][: len(state)] = state

    def _resize_slab(self, old_SHLD: Tensor, keeps: bool) -> Tensor:
        """Return a slab of the present size, in the memory of an old one where it is large enough."""
        kept_SHLD = old_SHLD if keeps else old_SHLD[:0]
        room = old_SHLD.untyped_storage().nbytes() // old_SHLD.element_size()
        if room < len(self.bias_SL) * old_SHLD[0, :, 0].numel() * self.num_columns:
            slab_SHLD = self._slab(old_SHLD)
        else:
            kept_SHLD = kept_SHLD.clone()  # the slab is in the same memory
            slab_SHLD = self._shape(old_SHLD.as_strided((room,), (1,)), old_SHLD)
        slab_SHLD[: len(kept_SHLD), :, : kept_SHLD.shape[2]] = kept_SHLD
        return slab_SHLD

    def copy_row(self, row: int, columns: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Return copies of a row's first keys and values (H, columns, D) by layer."""
        return {
            layer: (keys_SHLD[row, :, :columns].clone(), values_SHLD[row, :, :columns].clone())
            for layer, (keys_SHLD, values_SHLD) in self.slabs.items()
        }

    def _slab(self, like_BHTD: Tensor) -> Tensor:
        """Return a slab of zeros of the present size, in memory for the most columns."""
        size = len(self.bias_SL) * like_BHTD[0, :, 0].numel() * self.most_columns
        return self._shape(like_BHTD.new_zeros(size), like_BHTD)

    def _shape(self, memory: Tensor, like_BHTD: Tensor) -> Tensor:
        """Return the beginning of memory as a slab of the present size."""
        shape = (len(self.bias_SL), like_BHTD.shape[1], self.num_columns, like_BHTD.shape[3])
        return memory[: math.prod(shape)].view(shape)


def prefill(model: Any, ids_RT: Tensor) -> Prefix:
    """Return keys, values and states of prompts (R, T), right-padded if the model keeps no states."""
    prefix = Prefix(model)
    position_1T = torch.arange(ids_RT.shape[1], device=ids_RT.device)[None]
    with suppress(Filled):
        model.base_model(
            input_ids=ids_RT, position_ids=position_1T, use_cache=True, **{name_of_cache(type(model)): prefix}
        )
    return prefix


def compute_slot_logits(model: Any, slots: Slots, token_B: Tensor, position_B: Tensor) -> Tensor:
    """Run the model on one token per row at its position; return the logits (B, V) after it."""
    if slots.keeps_states and not slots.states:
        slots.make_states(prefill(model, token_B[:1, None]))
    slots.aim(position_B)
    return model(
        input_ids=token_B[:, None],
        position_ids=position_B[:, None],
        use_cache=True,
        slots=slots,
        **{name_of_cache(type(model)): slots},
    ).logits[:, -1]


@lru_cache
def name_of_cache(model: type) -> str:
    """Return the parameter of a model's forward that takes its cache; that of pure state spaces has another name."""
    return "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else "past_key_values"
