"""Values at paths or at sampled tokens, the inputs and outputs of advantage operations.

Shapes: P paths, T sampled tokens, X entries of a column (P or T), H pairs of a segment and a path that holds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from learning.batch.batch import Batch
from schemas.errors import StepError


@dataclass(frozen=True)
class Column:
    """Values at paths or at sampled tokens, the rewards that they derive from, and the path of every entry."""

    values_X: Tensor
    raw_X: Tensor
    path_X: Tensor
    unit: Literal["path", "token"]
    return_X: Tensor | None = None
    """Target of the critic at every token (T,), if an operation sets it."""


def of_rewards(batch: Batch) -> Column:
    """Return the column that a pipeline starts from."""
    reward_P = batch.paths["reward"]
    return Column(reward_P, reward_P, torch.arange(batch.num_paths), "path")


def broadcast_to_tokens(
    column: Column, batch: Batch, *, at: Literal["all", "last"] = "all", tree: Literal["mean", "max", "owner"] = "mean"
) -> Column:
    """Return a column of paths lifted to sampled tokens: every token of the path, or only its last one (0 elsewhere).

    A token shared by several paths gets the mean or the maximum of their values, or the value of its owner path.
    """
    if column.unit == "token":
        return column
    path_T = batch.path_T
    values_T, raw_T = column.values_X[path_T], column.raw_X[path_T]
    if tree != "owner" and at == "all":
        values_T = _over_paths(column.values_X, batch, tree)
    if at == "last":
        last_T = locate_in_path(path_T)[1] == 0
        values_T = values_T.where(last_T, torch.zeros_like(values_T))
    return Column(values_T, raw_T, path_T, "token", column.return_X)


def _over_paths(values_P: Tensor, batch: Batch, tree: str) -> Tensor:
    """Return the mean or maximum over all paths that hold a sampled token, at each of them (T,)."""
    spans: list[tuple[int, int]] = []
    for path, segment in enumerate(batch.leaves):
        while segment >= 0:
            spans.append((segment, path))
            segment = batch.parents[segment]
    segment_H, path_H = torch.tensor(spans, dtype=torch.long).reshape(-1, 2).unbind(1)
    of_segment = values_P.new_zeros(len(batch.segments)).scatter_reduce(
        0, segment_H, values_P[path_H], {"mean": "mean", "max": "amax"}[tree], include_self=False
    )
    return of_segment[torch.searchsorted(batch.packed.cu_seqlens_S1, batch.sampled_T, right=True) - 1]


def locate_in_path(path_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens of the same path before and after each token."""
    order = path_T.argsort(stable=True)
    counts_P = path_T.bincount()
    first_P = counts_P.cumsum(0) - counts_P
    place_T = torch.empty_like(path_T)
    place_T[order] = torch.arange(len(path_T), device=path_T.device) - first_P[path_T[order]]
    return place_T, counts_P[path_T] - 1 - place_T


def take_next_state(value_T: Tensor, end_P: Tensor, batch: Batch) -> Tensor:
    """Return the value of the state after each sampled token (T,), which is the state before the next token.

    After the last token it is `end_P` for a truncated path, else 0.
    """
    path_T = batch.path_T
    cut_T = batch.paths["truncated"][path_T]
    return take_next_token(value_T, end_P[path_T].to(value_T).where(cut_T, torch.zeros_like(value_T)), path_T)


def take_next_token(value_T: Tensor, end_T: Tensor, path_T: Tensor) -> Tensor:
    """Return the entry of the next token of the same path, and of `end_T` at the last one."""
    before_T, after_T = locate_in_path(path_T)
    order = (path_T * (int(before_T.max()) + 1 if len(before_T) else 1) + before_T).argsort()
    next_T = torch.zeros_like(value_T)
    next_T[order[:-1]] = value_T[order[1:]]
    return torch.where(after_T == 0, end_T, next_T)


def sum_of_path(values_T: Tensor, path_T: Tensor) -> Tensor:
    """Return the sum over each path."""
    index_T = path_T.unique(return_inverse=True)[1]
    size = int(index_T.max()) + 1 if len(index_T) else 0
    zeros = torch.zeros(size, dtype=values_T.dtype, device=values_T.device)
    return zeros.index_add(0, index_T, values_T)[index_T]


def mean_of_path(values_T: Tensor, path_T: Tensor) -> Tensor:
    """Return the mean over each path."""
    return sum_of_path(values_T, path_T) / sum_of_path(torch.ones_like(values_T), path_T)


def any_of_path(flags_T: Tensor, path_T: Tensor) -> Tensor:
    """Return whether a token of the path is flagged."""
    return sum_of_path(flags_T.double(), path_T) > 0


def sum_of_later(values_T: Tensor, path_T: Tensor) -> Tensor:
    """Return the sum over the later tokens of the path."""
    index_T = path_T.unique(return_inverse=True)[1]
    from_start_T, from_end_T = locate_in_path(index_T)
    if not len(index_T):
        return values_T
    padded_PL = values_T.new_zeros(int(index_T.max()) + 1, int(from_start_T.max()) + 1)
    padded_PL[index_T, from_end_T] = values_T
    return padded_PL.cumsum(1)[index_T, from_end_T] - values_T


def get_auxiliary(auxiliary_T: Mapping[str, Tensor], of: str, asker: str) -> Tensor:
    """Return the column of an auxiliary model; raise StepError if the stage has no such model."""
    if of not in auxiliary_T:
        raise StepError(f"{asker}: no auxiliary {of!r} in this stage; it has: {', '.join(auxiliary_T) or 'none'}")
    return auxiliary_T[of].double()
