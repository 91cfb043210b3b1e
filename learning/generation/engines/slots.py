"""Cache of the torch engine: rows of keys, values and states, each row a slot with its own length.

Keys and values lie in one slab per layer; a row's column is the position of its token, so slots never need padding.
States of linear attention, state spaces and convolutions have one row per slot. A new occupant of a slot overwrites the
old one. Prompts are computed in a batch and copied into as many slots as they have samples. With `shares`, their keys
and values stay where they are, once for all samples of a prompt, and a slot holds only the tokens that come after it.

Shapes: B rows in use, S slots, L columns, H key-value heads, D width of a head, T tokens at once, R prompts.
"""

import inspect
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, LinearAttentionCacheLayerMixin, LinearAttentionLayer

StateName = Literal["conv_states", "recurrent_states"]


def has_states(model: Any) -> bool:
    """Return whether a model has layers that keep a state instead of keys and values."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=model.config).layers)


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

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values."""
        self.pairs[layer_idx] = key_states, value_states
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


class Slots(Cache):
    """The slabs: `aim` sets the position of every row's next token; the model then calls `update` layer by layer."""

    def __init__(self, model: Any, num_slots: int, num_columns: int, *, shares: bool = False) -> None:
        super().__init__(layers=[])
        device = next(model.parameters()).device
        self.slabs: dict[int, tuple[Tensor, Tensor]] = {}
        self.states: dict[tuple[int, StateName, int], Tensor] = {}
        """States of all slots (S, …) by layer, kind and number; empty until a prompt shows their shapes."""
        self.keeps_states = has_states(model)
        self.num_columns = num_columns
        self.bias_SL = torch.full((num_slots, num_columns), float("-inf"), device=device)
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
        self.bias_SL[self.row_B, self.column_B] = 0.0
        self.columns = int(self.column_B.max()) + 1
        if self.shares and self.grouped != rows:
            self._group(rows)
        self.windowed = {}
        for (layer, name, number), state in self.states.items():
            getattr(self.layers[layer], name)[number] = state[:rows]  # the model writes into this view

    def compute_bias(self, window: int | None) -> Tensor:
        """Return what is added to attention scores (B, 1, 1, L): −inf for keys that a row's next token does not see.

        `window` is the number of keys that it sees, itself included.
        """
        bias_BL = self.bias_SL[: len(self.row_B), : self.columns]
        if window and window < self.columns:
            if window not in self.windowed:
                column_L = torch.arange(self.columns, device=bias_BL.device)
                far_BL = column_L <= self.column_B[:, None] - window
                self.windowed[window] = bias_BL.masked_fill(far_BL, float("-inf"))
            bias_BL = self.windowed[window]
        return bias_BL[:, None, None]

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
        column_L = torch.arange(self.num_columns, device=lengths_X.device)
        self.bias_SL[slots_X] = torch.where(column_L < lengths_X[:, None], 0.0, float("-inf"))
        if prefix is None:
            for state in self.states.values():
                state[slots_X] = 0.0
            return
        for layer, pair in prefix.pairs.items() if not self.shares else ():
            if layer not in self.slabs:
                self.slabs[layer] = self._slab(pair[0]), self._slab(pair[1])
            for slab_SHLD, states_RHTD in zip(self.slabs[layer], pair, strict=True):
                slab_SHLD[slots_X, :, : states_RHTD.shape[2]] = states_RHTD[source_X]
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

    def grow(self, num_slots: int, num_columns: int) -> None:
        """Make room for more slots and longer sequences; the contents of the slots stay."""
        old_SL, self.num_columns = self.bias_SL, num_columns
        self.bias_SL = old_SL.new_full((num_slots, num_columns), float("-inf"))
        self.bias_SL[: old_SL.shape[0], : old_SL.shape[1]] = old_SL
        self.begin_S = torch.cat([self.begin_S, self.begin_S.new_zeros(num_slots - len(self.begin_S))])
        for layer, pair in self.slabs.items():
            grown = tuple(self._slab(slab_SHLD) for slab_SHLD in pair)
            for new_SHLD, slab_SHLD in zip(grown, pair, strict=True):
                new_SHLD[: slab_SHLD.shape[0], :, : slab_SHLD.shape[2]] = slab_SHLD
            self.slabs[layer] = (grown[0], grown[1])
        for at, state in self.states.items():
            self.states[at] = state.new_zeros(num_slots, *state.shape[1:])
            self.states[at][: len(state)] = state

    def copy_row(self, row: int, columns: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Return copies of a row's first keys and values (H, columns, D) by layer."""
        return {
            layer: (keys_SHLD[row, :, :columns].clone(), values_SHLD[row, :, :columns].clone())
            for layer, (keys_SHLD, values_SHLD) in self.slabs.items()
        }

    def _slab(self, like_BHTD: Tensor) -> Tensor:
        heads, width = like_BHTD.shape[1], like_BHTD.shape[3]
        return like_BHTD.new_zeros(len(self.bias_SL), heads, self.num_columns, width)


def prefill(model: Any, ids_RT: Tensor) -> Prefix:
    """Return keys, values and states of prompts (R, T), right-padded if the model keeps no states."""
    prefix = Prefix(model)
    positions = torch.arange(ids_RT.shape[1], device=ids_RT.device)[None]
    model.base_model(input_ids=ids_RT, position_ids=positions, use_cache=True, **{name_of_cache(type(model)): prefix})
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
