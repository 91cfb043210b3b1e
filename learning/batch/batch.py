"""The record of the RL loop: a forest of segments with ragged token columns; a training sample is a root→leaf path.

A sample whose context was replaced during its episode is one path with several root→leaf chains, one per context: its
tokens count as those of one sample, and every token is computed under the context that it was sampled in.

A prompt is stored once for all its completions. Token ids are those that the engine sampled, never retokenised;
log-probabilities are those of the sampling policy, stored AT the token. Columns are added, never changed in place.

Shapes: M tokens of all segments, T of them sampled by the policy and trained on (`learn`), P paths.

Token columns: `learn` bool, `lp_behav`, `owner` (the first path that holds the token: shared tokens count once),
`broken` bool (the engine's log-probability was not a number; such a token is left out of the loss and counted).
Path columns: `path`, `group`, `episode` (ids), `truncated` bool; scores and rewards once they are known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from learning.models.packed import Packed, pack


@dataclass(frozen=True)
class Batch:
    """Segments, their tokens' columns and their paths' columns."""

    segments: Sequence[list[int]]
    parents: Sequence[int]
    leaves: Sequence[int]
    """The last segment of each path."""
    tokens: Mapping[str, Tensor]
    paths: Mapping[str, Tensor]
    replay: Callable[[Any, Tensor], AbstractContextManager[None]] | None = None
    """Makes forward passes of a model use the recorded experts, the column `experts`; None: the routers choose."""
    earlier: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The last segments of the earlier contexts of a path (0..P−1) whose context was replaced during its episode."""
    kept: Sequence[Sequence[str]] = ()
    """For every segment the records of the tokens that its tokens were sampled from, none if they all were from the
    whole vocabulary (`learning.samples.kept_tokens`); empty: no segment has any."""

    @property
    def num_paths(self) -> int:
        """Return P, the number of paths."""
        return len(self.leaves)

    @cached_property
    def packed(self) -> Packed:
        """Return the token ids, laid out for one forward pass."""
        return pack(list(self.segments), list(self.parents))

    @cached_property
    def kept_M(self) -> list[str] | None:
        """Return the record of every token, empty for one of the whole vocabulary; None if no token has another."""
        if not any(self.kept):
            return None
        pairs = zip(self.segments, self.kept, strict=True)
        return [record for ids, records in pairs for record in records or [""] * len(ids)]

    @cached_property
    def sampled_T(self) -> Tensor:
        """Return the indices of the tokens that are trained on; those of one path are in its order."""
        return self.tokens["learn"].nonzero()[:, 0]

    @cached_property
    def path_T(self) -> Tensor:
        """Return the path (0..P−1) that owns each sampled token."""
        order = self.paths["path"].argsort()
        place_T = torch.searchsorted(self.paths["path"][order], self.tokens["owner"][self.sampled_T])
        return order[place_T]

    def routed(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which forward passes of a model use the recorded experts, if there are any."""
        return nullcontext() if self.replay is None else self.replay(model, self.tokens["experts"])

    def sampled(self, column: str) -> Tensor:
        """Return a token column at the sampled tokens: (T,)."""
        return self.tokens[column][self.sampled_T]

    def key(self, by: str) -> Tensor:
        """Return the ids (P,) that statistics are grouped by; `batch` groups all paths together."""
        return torch.zeros(self.num_paths, dtype=torch.long) if by == "batch" else self.paths[by]

    def with_paths(self, **columns: Tensor) -> "Batch":
        """Return the batch with further path columns; raise ValueError if one exists already."""
        return replace(self, paths=_added(self.paths, columns))

    def with_tokens(self, **columns: Tensor) -> "Batch":
        """Return the batch with further token columns, given at the sampled tokens (T,), 0 elsewhere.

        Raise ValueError if one exists already.
        """
        size = len(self.tokens["learn"])
        spread = {k: v.new_zeros(size).index_put((self.sampled_T,), v) for k, v in columns.items()}
        return replace(self, tokens=_added(self.tokens, spread))

    def replaced(self, **columns: Tensor) -> "Batch":
        """Return the batch with token columns, given at the sampled tokens (T,), replacing those of the same names."""
        return replace(self, tokens={k: v for k, v in self.tokens.items() if k not in columns}).with_tokens(**columns)

    def take(self, chosen: Sequence[int]) -> "Batch":
        """Return the chosen paths, in that order, with their segments; tokens owned by other paths become context."""
        old = sorted(self.find_segments(chosen))
        new = {segment: i for i, segment in enumerate(old)}
        starts = self._starts
        at = torch.cat([torch.arange(starts[s], starts[s + 1]) for s in old]) if old else torch.zeros(0).long()
        index_P = torch.tensor(list(chosen), dtype=torch.long)
        tokens = {k: v[at] for k, v in self.tokens.items()}
        tokens["learn"] = tokens["learn"] & torch.isin(tokens["owner"], self.paths["path"][index_P])
        return Batch(
            [self.segments[s] for s in old],
            [new.get(self.parents[s], -1) for s in old],
            [new[self.leaves[p]] for p in chosen],
            tokens,
            {k: v[index_P] for k, v in self.paths.items()},
            self.replay,
            {i: tuple(new[s] for s in self.earlier[p]) for i, p in enumerate(chosen) if p in self.earlier},
            [self.kept[s] for s in old] if self.kept else (),
        )

    def find_segments(self, chosen: Iterable[int]) -> set[int]:
        """Return the segments of the chosen paths."""
        segments: set[int] = set()
        for segment in (end for path in chosen for end in (*self.earlier.get(path, ()), self.leaves[path])):
            while segment >= 0 and segment not in segments:
                segments.add(segment)
                segment = self.parents[segment]
        return segments

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for segment in self.segments:
            starts.append(starts[-1] + len(segment))
        return starts


def _added(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if twice := old.keys() & new.keys():
        raise ValueError(f"column {', '.join(sorted(twice))} exists already: a part may only add columns")
    return {**old, **new}
