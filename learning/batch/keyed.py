"""Statistics of the entries of a column that have the same key: the same group, problem, family, source, episode.

Shapes: P paths, X entries of a column (paths or sampled tokens).
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from learning.batch.batch import Batch
from learning.samples.sample import SOURCES

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


def standardise_per_key(values_X: Tensor, index_X: Tensor, epsilon: float) -> Tensor:
    """Return values with mean 0 and standard deviation 1 in every key, exactly 0 if its entries are equal."""
    centred_X = values_X - apply_per_key(values_X, index_X, torch.mean)
    scaled_X = centred_X / (apply_per_key(values_X, index_X, compute_deviation) + epsilon)
    return scaled_X.masked_fill(are_equal_per_key(values_X, index_X), 0.0)
