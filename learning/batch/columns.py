"""Columns of a batch, which advantage operations take and return, statistics of entries of one key, and a view by name.

A key is the group, problem, family, source or episode of an entry. In a view `<name>_T` is a token column of the batch
at its sampled tokens, or a path column spread over them; `<name>_P` is a path column. Columns of auxiliary models have
the models' names; `auxiliary_T` maps to all of them.

Shapes: P paths, T sampled tokens, X entries of a column (P or T), H pairs of a segment and a path that holds it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from learning.batch.batch import Batch
from learning.samples.sample import SOURCES
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


def require_paths(column: Column, operation: str) -> Column:
    """Return the column; raise StepError unless it has one number per path."""
    if column.unit != "path":
        raise StepError(
            f"advantage {operation}: the values are one per token, not one per completion; "
            "put it before broadcast_to_tokens and reward_to_go"
        )
    return column


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
    spans = [(segment, path) for path in range(batch.num_paths) for segment in sorted(batch.find_segments([path]))]
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


def find_turn_ends(path_T: Tensor, turn_T: Tensor) -> Tensor:
    """Return whether each token is the last one of a turn (T,)."""
    place_T = torch.arange(len(path_T))
    index_T = torch.stack([path_T, turn_T]).unique(dim=1, return_inverse=True)[1]
    size = int(index_T.max()) + 1 if len(index_T) else 0
    return place_T == place_T.new_zeros(size).scatter_reduce(0, index_T, place_T, "amax")[index_T]


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


AUXILIARY = "aux:"
"""Prefix of the columns of auxiliary models in a batch."""


class ColumnView(Mapping[str, Any]):
    """The columns of a batch, and `more`; numbers come in the precision and on the device of `like`."""

    def __init__(self, batch: Batch, like: Tensor | None = None, /, **more: Any) -> None:
        self.batch, self.like = batch, like
        self.columns: dict[str, Any] = {"batch": batch, **more}

    def __getitem__(self, name: str) -> Any:
        if name not in self.columns:
            self.columns[name] = self._convert(self._look_up(name))
        return self.columns[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.columns[name] = value

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        own = ("learn", "owner")
        tokens = (f"{name.removeprefix(AUXILIARY)}_T" for name in self.batch.tokens if name not in own)
        paths = (f"{name}_{unit}" for name in self.batch.paths if ":" not in name for unit in "TP")
        derived = ("path_T", "place_T", "length_T", "length_P", "scores_P")
        return iter(dict.fromkeys((*self.columns, *tokens, *paths, *derived)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def detach(self) -> None:
        """Detach the columns from the graph that computed them."""
        self.columns = {k: v.detach() if isinstance(v, Tensor) else v for k, v in self.columns.items()}

    def _look_up(self, name: str) -> Any:
        base, _, unit = name.rpartition("_")
        batch = self.batch
        if name == "scores_P":
            return {k.removeprefix("score:"): v for k, v in batch.paths.items() if k.startswith("score:")}
        if name == "auxiliary_T":
            return {name: self[f"{name}_T"] for name in _auxiliaries(batch)}
        if name == "path_T":
            return batch.path_T
        if name == "place_T":
            return locate_in_path(batch.path_T)[0]
        if base == "length":
            length_P = batch.path_T.bincount(minlength=batch.num_paths)
            return length_P if unit == "P" else length_P[batch.path_T]
        if unit == "T" and base in batch.tokens:
            return batch.sampled(base)
        if unit == "T" and base in batch.paths:
            return batch.paths[base][batch.path_T]
        if unit == "P" and base in batch.paths:
            return batch.paths[base]
        if unit in ("T", "P") and not base.startswith(AUXILIARY):
            return self._look_up(f"{AUXILIARY}{name}")
        raise KeyError(name)

    def _convert(self, value: Any) -> Any:
        if self.like is None or not isinstance(value, Tensor):
            return value
        return value.to(self.like.device, self.like.dtype if value.is_floating_point() else value.dtype)


def _auxiliaries(batch: Batch) -> list[str]:
    """Return the names of the columns of auxiliary models, without those of single heads."""
    named = (n.removeprefix(AUXILIARY) for n in (*batch.tokens, *batch.paths) if n.startswith(AUXILIARY))
    return [name for name in named if "." not in name]


Key = Literal["group", "batch", "episode", "prompt", "family", "source"]


def index_keys(batch: Batch, path_X: Tensor, by: str, within: str | None = None) -> Tensor:
    """Return the number (0..) of each entry's key, or of its two keys."""
    key_KP = torch.stack([batch.key(by), batch.key(within or "batch")])
    return key_KP[:, path_X].unique(dim=1, return_inverse=True)[1]


def sum_by_index(values_X: Tensor, index_X: Tensor) -> Tensor:
    """Return the sum of the values of each number (0..) of an index, once per number."""
    return torch.zeros(int(index_X.max()) + 1, dtype=values_X.dtype).index_add(0, index_X, values_X)


def select_sources(batch: Batch, path_X: Tensor, sources: Sequence[str] | None) -> Tensor | None:
    """Return which entries come from one of the named sources; None stands for all."""
    if sources is None:
        return None
    codes = torch.tensor([SOURCES.index(name) for name in sources])
    return torch.isin(batch.paths["source"], codes)[path_X]


def apply_per_key(
    values_X: Tensor, index_X: Tensor, function: Callable[[Tensor], Tensor], among_X: Tensor | None = None
) -> Tensor:
    """Return a statistic of each key's entries (in `among_X`), at every entry of the key; NaN if it has none."""
    out_X = torch.full_like(values_X, torch.nan)
    order = index_X.argsort(stable=True)
    for members in order.split(index_X.bincount().tolist()):
        chosen = members if among_X is None else members[among_X[members]]
        if len(chosen):
            out_X[members] = function(values_X[chosen])
    return out_X


def sum_per_key(values_X: Tensor, index_X: Tensor, among_X: Tensor | None = None) -> Tensor:
    """Return the sum over each key's entries (in `among_X`), at every entry of the key; 0 if it has none."""
    heard_X = values_X if among_X is None else values_X * among_X
    return apply_per_key(heard_X, index_X, torch.sum)


def are_equal_per_key(values_X: Tensor, index_X: Tensor, among_X: Tensor | None = None) -> Tensor:
    """Return whether the entries of each key (in `among_X`) are equal; True for one entry, False for none."""
    low_X, high_X = (apply_per_key(values_X, index_X, f, among_X) for f in (torch.min, torch.max))
    return low_X == high_X


def compute_median(values: Tensor) -> Tensor:
    """Return the mean of the two middle values for an even count (torch takes the lower)."""
    return values.quantile(0.5)


def compute_deviation(values: Tensor, correction: int = 1) -> Tensor:
    """Return the standard deviation; 0 of a single value."""
    return values.std(correction=correction) if len(values) > 1 else values.new_zeros(())


def center_per_key(values_X: Tensor, index_X: Tensor) -> Tensor:
    """Return values minus the mean of their key, exactly 0 if its entries are equal."""
    centred_X = values_X - apply_per_key(values_X, index_X, torch.mean)
    return centred_X.masked_fill(are_equal_per_key(values_X, index_X), 0.0)


def standardise_per_key(values_X: Tensor, index_X: Tensor, epsilon: float, correction: int = 1) -> Tensor:
    """Return values with mean 0 and standard deviation 1 in every key, exactly 0 if its entries are equal."""
    centred_X = values_X - apply_per_key(values_X, index_X, torch.mean)
    scaled_X = centred_X / (
        apply_per_key(values_X, index_X, partial(compute_deviation, correction=correction)) + epsilon
    )
    return scaled_X.masked_fill(are_equal_per_key(values_X, index_X), 0.0)


def sum_later(paid_S: Tensor, last_S: Tensor, gamma: float) -> Tensor:
    """Return the discounted sum of what each step and the later ones earn; `last_S` marks the last of each path."""
    return_S, later = paid_S.clone(), 0.0
    for step in range(len(paid_S) - 1, -1, -1):
        later = float(paid_S[step]) + (0.0 if last_S[step] else gamma * later)
        return_S[step] = later
    return return_S
