"""The record of the RL loop: a forest of segments with ragged token columns; a training sample is a root→leaf path.

A prompt is stored once, whatever the number of its completions. Token ids are those the engine sampled, never tokenised
again; log-probabilities are those of the sampling policy, stored AT the token. Columns are only ever added.

Shapes: M tokens of all segments, T of them sampled by the policy and trained on (`learn`), P paths.

Token columns: `learn` bool, `lp_behav`, `owner` (the first path that holds the token: shared tokens count once),
`broken` bool (the engine's log-probability was not a number; such a token is left out of the loss and counted).
Path columns: `path`, `group`, `episode` (ids), `truncated` bool; scores and rewards once they are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from learning.engines.protocol import Generation
from learning.packed import Packed, pack


@dataclass(frozen=True)
class Batch:
    """Segments, their tokens' columns and their paths' columns."""

    segments: Sequence[list[int]]
    parents: Sequence[int]
    leaves: Sequence[int]
    """The last segment of each path."""
    tokens: Mapping[str, Tensor]
    paths: Mapping[str, Tensor]

    @property
    def num_paths(self) -> int:
        """P."""
        return len(self.leaves)

    @cached_property
    def packed(self) -> Packed:
        """The token ids, laid out for one forward pass."""
        return pack(list(self.segments), list(self.parents))

    @cached_property
    def sampled_T(self) -> Tensor:
        """Indices of the tokens that are trained on; those of one path are in its order."""
        return self.tokens["learn"].nonzero()[:, 0]

    @cached_property
    def path_T(self) -> Tensor:
        """Path (0..P−1) that owns each sampled token."""
        order = self.paths["path"].argsort()
        found = torch.searchsorted(self.paths["path"][order], self.tokens["owner"][self.sampled_T])
        return order[found]

    def sampled(self, column: str) -> Tensor:
        """A token column at the sampled tokens: (T,)."""
        return self.tokens[column][self.sampled_T]

    def key(self, by: str) -> Tensor:
        """Ids (P,) by which statistics are taken; `batch` puts all paths together."""
        return torch.zeros(self.num_paths, dtype=torch.long) if by == "batch" else self.paths[by]

    def with_paths(self, **columns: Tensor) -> "Batch":
        """Add path columns; raises ValueError for one that exists."""
        return replace(self, paths=_added(self.paths, columns))

    def with_tokens(self, **columns: Tensor) -> "Batch":
        """Add token columns, given at the sampled tokens (T,), 0 elsewhere; raises ValueError for one that exists."""
        size = len(self.tokens["learn"])
        spread = {k: v.new_zeros(size).index_put((self.sampled_T,), v) for k, v in columns.items()}
        return replace(self, tokens=_added(self.tokens, spread))

    def take(self, chosen: Sequence[int]) -> "Batch":
        """The chosen paths, in that order, with the segments they need; tokens owned by other paths become context."""
        needed: set[int] = set()
        for segment in (self.leaves[p] for p in chosen):
            while segment >= 0 and segment not in needed:
                needed.add(segment)
                segment = self.parents[segment]
        old = sorted(needed)
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
        )

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


def single_turn(prompts: Sequence[list[int]], generations: Sequence[Sequence[Generation]]) -> Batch:
    """Groups of completions, one group per prompt; the sampled stop token is part of the completion and trained on."""
    segments: list[list[int]] = []
    parents: list[int] = []
    leaves: list[int] = []
    columns: dict[str, list] = {"learn": [], "lp_behav": [], "owner": []}
    group_P: list[int] = []
    truncated_P: list[bool] = []
    for group, (prompt, completions) in enumerate(zip(prompts, generations, strict=True)):
        root = len(segments)
        _grow(segments, parents, columns, prompt, -1, None, len(leaves))
        for completion in completions:
            _grow(segments, parents, columns, completion.token_ids, root, completion.logprobs, len(leaves))
            leaves.append(len(segments) - 1)
            group_P.append(group)
            truncated_P.append(completion.finish == "length")
    ids = torch.arange(len(leaves))
    lp_behav_M = torch.tensor(columns["lp_behav"], dtype=torch.float64)
    broken_M = ~lp_behav_M.isfinite()
    return Batch(
        segments,
        parents,
        leaves,
        {
            "learn": torch.tensor(columns["learn"], dtype=torch.bool),
            "lp_behav": lp_behav_M.masked_fill(broken_M, 0.0),
            "broken": broken_M,
            "owner": torch.tensor(columns["owner"], dtype=torch.long),
        },
        {
            "path": ids,
            "episode": ids.clone(),
            "group": torch.tensor(group_P, dtype=torch.long),
            "truncated": torch.tensor(truncated_P, dtype=torch.bool),
        },
    )


def _grow(
    segments: list[list[int]],
    parents: list[int],
    columns: dict[str, list],
    ids: list[int],
    parent: int,
    logprobs: list[float] | None,
    owner: int,
) -> None:
    """Add one segment; `logprobs` None means that the policy did not sample it."""
    segments.append(list(ids))
    parents.append(parent)
    columns["learn"] += [logprobs is not None] * len(ids)
    columns["lp_behav"] += [0.0] * len(ids) if logprobs is None else logprobs
    columns["owner"] += [owner] * len(ids)
