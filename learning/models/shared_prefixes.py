"""Compute prefixes that segments have in common once: branches of an episode, repeated contexts, equal instructions.

A batch stores a token once for every path whose loss counts it, because each copy has an advantage of its own. The
model's numbers at the copies are equal, so they are computed once and copied, and gradients of the copies add up.

Shapes: M packed tokens, U distinct ones, C width of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learning.models.forwards import find_blocks, unwrap
from learning.models.packed import Packed, choose_forward, pack, packed_hidden, packed_statistics

SHORTEST_SHARED = 32
"""Tokens of the shortest prefix that is computed once: shorter ones would divide attention into many small segments."""
WORTH_MERGING = 0.9
"""Largest share of distinct tokens with which prefixes are merged."""


@dataclass(frozen=True)
class Distinct:
    """A forest without repeated prefixes, and the place in it of each token of the forest that it was made of."""

    packed: Packed
    index_M: Tensor


def shared_statistics(
    model: Any, packed: Packed, *, needed_M: Tensor, kept_M: Sequence[str] | None = None, **given: Any
) -> dict[str, Tensor]:
    """Return what `packed_statistics` returns, from one computation of every common prefix.

    Prefixes are not merged if copies of a token were sampled from different kept tokens, as under other weights.
    """
    distinct = find_shared(model, packed)
    kept_U = None if distinct is None or kept_M is None else _share_records(distinct, needed_M, kept_M)
    if distinct is None or (kept_U is None) != (kept_M is None):
        return packed_statistics(model, packed, needed_M=needed_M, kept_M=kept_M, **given)
    needed_M = needed_M.to(distinct.index_M.device)
    needed_U = torch.zeros_like(distinct.packed.input_ids_M, dtype=torch.bool)
    needed_U[distinct.index_M[needed_M]] = True
    statistics = packed_statistics(model, distinct.packed, needed_M=needed_U, kept_M=kept_U, **given)
    zero = {name: column_U.new_zeros(()) for name, column_U in statistics.items()}
    return {
        name: column_U.index_select(0, distinct.index_M).where(needed_M, zero[name])
        for name, column_U in statistics.items()
    }


def _share_records(distinct: Distinct, needed_M: Tensor, kept_M: Sequence[str]) -> list[str] | None:
    """Return the records of kept tokens of the distinct tokens; None if needed copies of one differ."""
    records: dict[int, str] = {}
    for index, needed, record in zip(distinct.index_M.tolist(), needed_M.tolist(), kept_M, strict=True):
        if needed and records.setdefault(index, record) != record:
            return None
    return [records.get(index, "") for index in range(len(distinct.packed.input_ids_M))]


def shared_hidden(model: Any, packed: Packed) -> Tensor:
    """Return what `packed_hidden` returns (M, C), from one computation of every common prefix."""
    distinct = find_shared(model, packed)
    if distinct is None:
        return packed_hidden(model, packed)
    return packed_hidden(model, distinct.packed).index_select(0, distinct.index_M)


def find_shared(model: Any, packed: Packed) -> Distinct | None:
    """Return the forest of distinct tokens; None if the model gains nothing by it or would compute something else.

    A mixture of experts counts the tokens that its router sees, and recorded experts are those of all copies. A model
    with its own forward pass computes whole paths.
    """
    plain = unwrap(model)
    if any(hasattr(getattr(block, "mlp", None), "experts") for block in find_blocks(plain)):
        return None
    return None if choose_forward(plain).body == "padded" else merge_prefixes(packed)


def merge_prefixes(packed: Packed) -> Distinct | None:
    """Return a forest in which prefixes of SHORTEST_SHARED tokens or more stand once; None if that saves too little."""
    ids, borders = packed.input_ids_M.tolist(), packed.cu_seqlens_S1.tolist()
    trie = _Trie([ids[a:b] for a, b in pairwise(borders)], packed.parent_S.tolist())
    trie.lay(-1, 0, trie.children.get(-1, []))
    if sum(map(len, trie.made)) > WORTH_MERGING * len(ids):
        return None
    distinct = pack(trie.made, trie.parents)
    starts = distinct.cu_seqlens_S1.tolist()
    places = [torch.arange(starts[node], starts[node + 1]) for nodes in trie.nodes_of for node in nodes]
    device = packed.input_ids_M.device
    return Distinct(distinct.to(device), torch.cat(places).to(device))


@dataclass
class _Trie:
    """Segments cut where their common prefixes end."""

    segments: list[list[int]]
    parent_of: list[int]
    made: list[list[int]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    nodes_of: list[list[int]] = field(init=False)
    """The nodes that the tokens of each segment are in, in order."""
    children: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes_of = [[] for _ in self.segments]
        self.children = {}
        for segment, parent in enumerate(self.parent_of):
            self.children.setdefault(parent, []).append(segment)

    def lay(self, node: int, begin: int, members: Sequence[int]) -> None:
        """Add the tokens from `begin` on of segments that are alike before, and their descendants, below a node."""
        for run, end in self._runs(begin, members):
            last = self._make(node, run, begin, end)
            if rest := [s for s in run if len(self.segments[s]) > end]:
                self.lay(last, end, rest)
            if below := [c for s in run if len(self.segments[s]) == end for c in self.children.get(s, [])]:
                self.lay(last, 0, below)

    def _make(self, node: int, run: Sequence[int], begin: int, end: int) -> int:
        """Add a node with the tokens begin..end of a run; return it, or its parent if there are none."""
        if begin == end:
            return node
        self.made.append(self.segments[run[0]][begin:end])
        self.parents.append(node)
        for segment in run:
            self.nodes_of[segment].append(len(self.made) - 1)
        return len(self.made) - 1

    def _runs(self, begin: int, members: Sequence[int]) -> list[tuple[list[int], int]]:
        """Return members that have enough in common after `begin`, each run with the end of what all its members share.

        Runs are in the order of their first member. A member alone ends where it ends.
        """
        order = sorted(members, key=lambda s: (self.segments[s], s))
        runs: list[tuple[list[int], int]] = []
        for segment in order:
            if runs:
                run, end = runs[-1]
                common = self._common(run[-1], segment, begin)
                if common - begin >= SHORTEST_SHARED:
                    runs[-1] = ([*run, segment], min(end, common))
                    continue
            runs.append(([segment], len(self.segments[segment])))
        return sorted(((sorted(run), end) for run, end in runs), key=lambda found: found[0])

    def _common(self, first: int, second: int, begin: int) -> int:
        """Return how many tokens two segments share, or `begin` if these are fewer than count."""
        a, b = self.segments[first], self.segments[second]
        enough = begin + SHORTEST_SHARED
        if len(a) < enough or len(b) < enough or a[begin:enough] != b[begin:enough]:
            return begin
        length = min(len(a), len(b))
        return next((i for i in range(enough, length) if a[i] != b[i]), length)
