"""Values at paths or at sampled tokens, as advantage operations pass them on.

Shapes: P paths, T sampled tokens, X entries of a column (P or T), H pairs of a segment and a path that holds it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from learning.batch.batch import Batch


@dataclass(frozen=True)
class Column:
    """Values at paths or at sampled tokens, the rewards they came from, and the path of every entry."""

    values_X: Tensor
    raw_X: Tensor
    path_X: Tensor
    unit: Literal["path", "token"]
    return_X: Tensor | None = None
    """What a critic is to predict at every token (T,), where an operation says so."""


def of_rewards(batch: Batch) -> Column:
    """The column that a pipeline starts from."""
    reward_P = batch.paths["reward"]
    return Column(reward_P, reward_P, torch.arange(batch.num_paths), "path")


def broadcast_to_tokens(
    column: Column, batch: Batch, *, at: Literal["all", "last"] = "all", tree: Literal["mean", "max", "owner"] = "mean"
) -> Column:
    """From paths to sampled tokens: every token of the path, or only its last one (0 elsewhere).

    A token that several paths share gets the mean of their values, their maximum, or that of the path that owns it.
    """
    if column.unit == "token":
        return column
    path_T = batch.path_T
    values_T, raw_T = column.values_X[path_T], column.raw_X[path_T]
    if tree != "owner" and at == "all":
        values_T = _over_paths(column.values_X, batch, tree)
    if at == "last":
        last_T = place(path_T)[1] == 0
        values_T = values_T.where(last_T, torch.zeros_like(values_T))
    return Column(values_T, raw_T, path_T, "token", column.return_X)


def _over_paths(values_P: Tensor, batch: Batch, tree: str) -> Tensor:
    """Mean or maximum over all paths that hold a sampled token, at each of them (T,)."""
    held: list[tuple[int, int]] = []
    for path, segment in enumerate(batch.leaves):
        while segment >= 0:
            held.append((segment, path))
            segment = batch.parents[segment]
    segment_H, path_H = torch.tensor(held, dtype=torch.long).reshape(-1, 2).unbind(1)
    of_segment = values_P.new_zeros(len(batch.segments)).scatter_reduce(
        0, segment_H, values_P[path_H], {"mean": "mean", "max": "amax"}[tree], include_self=False
    )
    return of_segment[torch.searchsorted(batch.packed.cu_seqlens_S1, batch.sampled_T, right=True) - 1]


def place(path_T: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of the same path before and after each token."""
    order = path_T.argsort(stable=True)
    counts_P = path_T.bincount()
    first_P = counts_P.cumsum(0) - counts_P
    place_T = torch.empty_like(path_T)
    place_T[order] = torch.arange(len(path_T), device=path_T.device) - first_P[path_T[order]]
    return place_T, counts_P[path_T] - 1 - place_T


def after(value_T: Tensor, end_P: Tensor, batch: Batch) -> Tensor:
    """Value of the state after each sampled token (T,), which is that before the next one.

    At the end of a path that was cut it is `end_P`, at that of one which ended by itself 0.
    """
    path_T = batch.path_T
    cut_T = batch.paths["truncated"][path_T]
    return following(value_T, end_P[path_T].to(value_T).where(cut_T, torch.zeros_like(value_T)), path_T)


def following(value_T: Tensor, end_T: Tensor, path_T: Tensor) -> Tensor:
    """Each token's entry is that of the next token of its path, the last one's its own of `end_T`."""
    before_T, after_T = place(path_T)
    order = (path_T * (int(before_T.max()) + 1 if len(before_T) else 1) + before_T).argsort()
    next_T = torch.zeros_like(value_T)
    next_T[order[:-1]] = value_T[order[1:]]
    return torch.where(after_T == 0, end_T, next_T)
