"""From rewards to advantages: small operations on a column, applied in the order of the recipe's list.

GRPO is `center(by: group)` then `scale(by: group)`; Dr.GRPO leaves out the second; RLOO centers on the mean of the
others. The column starts as one reward per path; `lift` spreads it over the sampled tokens. Groups are found by id,
never by position. A key with one member, or with equal values, gives exactly 0: rounding must not become a signal.

Shapes: P paths, T sampled tokens, X entries of a column (P or T).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch import Batch
from learning.columns import Column, lift, of_rewards, place
from learning.credit import diff, gae
from learning.multitask import tmn_reweight
from schemas.schedules import Number

__all__ = ["Column", "center", "clip", "diff", "gae", "lift", "of_rewards", "scale", "tmn_reweight", "togo"]

Key = Literal["group", "batch", "episode"]


def center(
    column: Column, batch: Batch, *, by: Key = "group", stat: Literal["mean", "loo", "median"] = "mean"
) -> Column:
    """Subtract a statistic of the entries with the same key; `loo` is the mean of the others (Kool et al. 2019)."""
    index_X = _index(column, batch, by)
    count_X, values = _per_key(torch.ones_like(column.values_X), index_X, torch.sum), column.values_X
    if stat == "median":
        base_X = _per_key(values, index_X, _median)
    elif stat == "mean":
        base_X = _per_key(values, index_X, torch.sum) / count_X
    else:
        base_X = (_per_key(values, index_X, torch.sum) - values) / (count_X - 1).clamp(min=1)
    return replace(column, values_X=(values - base_X).masked_fill(_flat(values, index_X), 0.0))


def scale(
    column: Column,
    batch: Batch,
    *,
    by: Key = "group",
    stat: Literal["std", "mean", "mad"] = "std",
    of: Literal["self", "raw"] = "self",
    epsilon: Annotated[float, Field(ge=0)] = 1e-4,
    unbiased: bool = True,
) -> Column:
    """Divide by a spread (or mean) of the entries with the same key, plus `epsilon`.

    `of: raw` takes it of the rewards as they were before any operation. Where they do not differ the result is 0.
    """
    index_X = _index(column, batch, by)
    source_X = column.raw_X if of == "raw" else column.values_X
    of_key: dict[str, Callable[[Tensor], Tensor]] = {
        "std": lambda v: v.std(correction=int(unbiased)) if len(v) > 1 else v.new_zeros(()),
        "mean": torch.mean,
        "mad": lambda v: _median((v - _median(v)).abs()),
    }
    spread_X = _per_key(source_X, index_X, of_key[stat]) + epsilon
    scaled_X = column.values_X / spread_X
    return replace(column, values_X=scaled_X.masked_fill(_flat(source_X, index_X) | (spread_X == 0), 0.0))


def clip(column: Column, batch: Batch, *, low: Number = -5.0, high: Number = 5.0) -> Column:
    """Keep values between two bounds."""
    return replace(column, values_X=column.values_X.clamp(low, high))


def togo(column: Column, batch: Batch, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0) -> Column:
    """Discounted sum of this and the later sampled tokens of the path; tokens of others in between take no time."""
    column = lift(column, batch, at="last")
    from_start_T, from_end_T = place(column.path_X)
    if not len(from_start_T):
        return column
    padded_PL = column.values_X.new_zeros(batch.num_paths, int(from_start_T.max()) + 1)
    padded_PL[column.path_X, from_end_T] = column.values_X
    for i in range(1, padded_PL.shape[1]):
        padded_PL[:, i] += gamma * padded_PL[:, i - 1]
    return replace(column, values_X=padded_PL[column.path_X, from_end_T])


def _index(column: Column, batch: Batch, by: str) -> Tensor:
    """Number (0..) of each entry's key."""
    return batch.key(by)[column.path_X].unique(return_inverse=True)[1]


def _per_key(values_X: Tensor, index_X: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A statistic of each key's entries, at every one of them."""
    out_X = torch.empty_like(values_X)
    order = index_X.argsort(stable=True)
    for members in order.split(index_X.bincount().tolist()):
        out_X[members] = function(values_X[members])
    return out_X


def _flat(values_X: Tensor, index_X: Tensor) -> Tensor:
    """Whether all entries of the key are equal (a single one is)."""
    low_X, high_X = _per_key(values_X, index_X, torch.min), _per_key(values_X, index_X, torch.max)
    return low_X == high_X


def _median(values: Tensor) -> Tensor:
    """The mean of the two middle values for an even count (torch takes the lower)."""
    return values.quantile(0.5)
