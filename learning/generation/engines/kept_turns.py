"""Keys and values of episodes between two turns, so that a turn computes only the tokens that are new to it.

An episode ends a turn, waits for its environment and continues with all earlier tokens and the answer. Its keys and
values are copied out of its slot when the turn ends; the next turn computes the answer's tokens against them. What is
kept belongs to exact token ids: a context that was rebuilt is computed whole.

Shapes: R rows, T new tokens at most, L columns, H key-value heads, D width of a head.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from learning.generation.engines.slots import Filled, Prefix, find_last_layer, name_of_cache

Stream = tuple[int, int]
"""The random stream of a completion: the seed of its request, and its number."""
Pairs = dict[int, tuple[Tensor, Tensor]]
"""Keys and values (H, L, D) of one sequence, by layer."""


@dataclass(frozen=True)
class KeptTurn:
    """The keys and values of a sequence's first tokens."""

    ids: list[int]
    pairs: Pairs


class KeptTurns:
    """The latest turn of each stream, at most `most` of them; the oldest is dropped first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.turns: dict[Stream, KeptTurn] = {}

    def keep(self, stream: Stream, turn: KeptTurn) -> None:
        """Store a stream's turn in place of its earlier one."""
        self.turns.pop(stream, None)
        self.turns[stream] = turn
        while len(self.turns) > self.most:
            del self.turns[next(iter(self.turns))]

    def take(self, stream: Stream, ids: Sequence[int]) -> KeptTurn | None:
        """Remove and return the stream's turn; None unless `ids` are its tokens and at least one more."""
        turn = self.turns.pop(stream, None)
        continues = turn is not None and len(turn.ids) < len(ids) and list(ids[: len(turn.ids)]) == turn.ids
        return turn if continues else None

    def clear(self) -> None:
        """Forget all turns."""
        self.turns = {}


class Extension(Cache):
    """Sequences with kept keys and values, to which a forward adds those of new tokens; it empties what was kept.

    Rows with fewer than T new tokens are padded on the right. Keys of padding go to one more column, which no real
    token sees: a long row's padding would otherwise lie beyond the longest sequence.
    """

    def __init__(self, model: Any, kept: Sequence[KeptTurn], new: Sequence[int]) -> None:
        super().__init__(layers=[])
        self.kept, self.last = kept, find_last_layer(model)
        device = next(iter(kept[0].pairs.values()))[0].device
        length_R, new_R = (torch.tensor(x, device=device) for x in ([len(turn.ids) for turn in kept], list(new)))
        self.longest = int((length_R + new_R).max())
        self.columns = self.longest + 1
        step_T = torch.arange(max(new), device=device)
        is_real_RT = step_T < new_R[:, None]
        self.position_RT = (length_R[:, None] + step_T).masked_fill(~is_real_RT, self.longest)
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values (R, H, L, D) by layer."""
        self.biases: dict[int | None, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any) -> tuple[Tensor, Tensor]:
        """Add the keys and values (R, H, T, D) of the new tokens; return all of them (R, H, L, D).

        Raise Filled after those of the last layer.
        """
        whole = []
        row_R1 = torch.arange(len(self.kept), device=key_states.device)[:, None]
        for side, new_RHTD in enumerate((key_states, value_states)):
            rows, heads, _, width = new_RHTD.shape
            slab_RHLD = new_RHTD.new_zeros(rows, heads, self.columns, width)
            for row, turn in enumerate(self.kept):
                slab_RHLD[row, :, : len(turn.ids)] = turn.pairs[layer_idx][side]
            slab_RHLD[row_R1, :, self.position_RT] = new_RHTD.transpose(1, 2)
            whole.append(slab_RHLD)
        for turn in self.kept:
            del turn.pairs[layer_idx]  # of a layer only one copy is in memory
        self.pairs[layer_idx] = whole[0], whole[1]
        if layer_idx == self.last:
            raise Filled
        return self.pairs[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: the positions of tokens are given to the model."""
        return 0

    def compute_bias(self, window: int | None) -> Tensor:
        """Return what is added to attention scores (R, 1, T, L): −inf for keys that a new token does not see.

        `window` is the number of keys that it sees, itself included.
        """
        if window not in self.biases:
            column_L = torch.arange(self.columns, device=self.position_RT.device)
            unseen_RTL = column_L > self.position_RT[:, :, None]
            if window:
                unseen_RTL = unseen_RTL | (column_L <= self.position_RT[:, :, None] - window)
            bias_RTL = torch.zeros(unseen_RTL.shape, device=unseen_RTL.device)
            self.biases[window] = bias_RTL.masked_fill_(unseen_RTL, float("-inf"))[:, None]
        return self.biases[window]


def extend(model: Any, kept: Sequence[KeptTurn], new: Sequence[Sequence[int]]) -> Prefix:
    """Return the keys and values of sequences: those that were kept, and those of `new` tokens after them.

    The kept turns are used up.
    """
    width, device = max(map(len, new)), model.device
    ids_RT = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in new], dtype=torch.long, device=device)
    cache = Extension(model, kept, [len(ids) for ids in new])
    position_RT = cache.position_RT.clamp(max=cache.longest - 1)  # padding is at no position of its own
    given = {"position_ids": position_RT, "use_cache": True, "slots": cache, name_of_cache(type(model)): cache}
    with suppress(Filled):
        model.base_model(input_ids=ids_RT, **given)
    prefix = Prefix(model)
    for layer, (key_RHLD, value_RHLD) in cache.pairs.items():
        prefix.pairs[layer] = key_RHLD[:, :, : cache.longest], value_RHLD[:, :, : cache.longest]
    return prefix
