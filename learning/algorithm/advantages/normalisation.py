"""Operations of the advantage pipeline on a column of rewards, applied in the order of the recipe's list.

GRPO is `center(by: group)` then `scale(by: group)`; Dr.GRPO omits the second; RLOO centers on the mean of the others.
The column starts as one reward per path; `broadcast_to_tokens` spreads it over the sampled tokens. Groups are
identified by id, not by
position. A key with one member, or with equal values, gives exactly 0, so that rounding does not become a signal.

An operation receives the column and the batch; it may name fixed token columns, `state` and `rows` as parameters.
Shapes: P paths, T sampled tokens, X entries of a column (P or T).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import (
    Column,
    Key,
    apply_per_key,
    are_equal_per_key,
    broadcast_to_tokens,
    compute_deviation,
    compute_median,
    index_keys,
    locate_in_path,
    select_sources,
    sum_per_key,
)
from learning.samples.sample import Source
from schemas.number_schedules import ScheduledFloat


def center(
    column: Column,
    batch: Batch,
    *,
    by: Key = "group",
    within: Key | None = None,
    stat: Literal["mean", "loo", "median", "max", "quantile", "len_weighted"] = "mean",
    q: Annotated[float, Field(ge=0, le=1)] = 0.5,
    among: list[Source] | None = None,
) -> Column:
    """Subtract a statistic of the entries of the same key: GRPO's mean of the group, RLOO's mean of the others (`loo`).

    `within` adds a second key. `len_weighted` weights paths by their sampled tokens (OPO, Hao et al. 2025); `quantile`
    is at `q`. `among` takes the statistic over entries of these sources only: `[greedy]` is ReMax's baseline. Without
    such entries the result is 0.
    """
    index_X, among_X = index_keys(batch, column.path_X, by, within), select_sources(batch, column.path_X, among)
    values_X = column.values_X
    if stat in ("loo", "len_weighted"):
        base_X = (
            _mean_of_others(values_X, index_X, among_X)
            if stat == "loo"
            else _mean_by_length(column, batch, index_X, among_X)
        )
    else:
        of_key: dict[str, Callable[[Tensor], Tensor]] = {
            "mean": torch.mean,
            "median": compute_median,
            "max": torch.max,
            "quantile": partial(torch.quantile, q=q),
        }
        base_X = apply_per_key(values_X, index_X, of_key[stat], among_X)
    same_X = are_equal_per_key(values_X, index_X, among_X) & (
        values_X == apply_per_key(values_X, index_X, torch.max, among_X)
    )
    return replace(column, values_X=(values_X - base_X).masked_fill(same_X | base_X.isnan(), 0.0))


def scale(
    column: Column,
    batch: Batch,
    *,
    by: Key = "group",
    within: Key | None = None,
    stat: Literal["std", "mean", "mad", "range"] = "std",
    of: Literal["self", "raw"] = "self",
    among: list[Source] | None = None,
    epsilon: Annotated[float, Field(ge=0)] = 1e-4,
    unbiased: bool = True,
) -> Column:
    """Divide by a spread (or mean) of the entries of the same key, plus `epsilon`; GRPO's is the group's deviation.

    `within` adds a second key. `of: raw` takes the spread of the rewards before any operation. Where the entries are
    equal the result is 0.
    """
    index_X, among_X = index_keys(batch, column.path_X, by, within), select_sources(batch, column.path_X, among)
    source_X = column.raw_X if of == "raw" else column.values_X
    of_key: dict[str, Callable[[Tensor], Tensor]] = {
        "std": partial(compute_deviation, correction=int(unbiased)),
        "mean": torch.mean,
        "mad": lambda v: compute_median((v - compute_median(v)).abs()),
        "range": lambda v: v.max() - v.min(),
    }
    spread_X = apply_per_key(source_X, index_X, of_key[stat], among_X) + epsilon
    useless_X = are_equal_per_key(source_X, index_X, among_X) | (spread_X == 0) | spread_X.isnan()
    return replace(column, values_X=(column.values_X / spread_X).masked_fill(useless_X, 0.0))


def clip(column: Column, batch: Batch, *, low: ScheduledFloat = -5.0, high: ScheduledFloat = 5.0) -> Column:
    """Clip values to two bounds."""
    return replace(column, values_X=column.values_X.clamp(low, high))


def reward_to_go(column: Column, batch: Batch, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0) -> Column:
    """Reward-to-go: the discounted sum over this and the later sampled tokens of the path.

    Tokens that the policy did not sample (prompts, observations) are not discounted.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    from_start_T, from_end_T = locate_in_path(column.path_X)
    if not len(from_start_T):
        return column
    padded_PL = column.values_X.new_zeros(batch.num_paths, int(from_start_T.max()) + 1)
    padded_PL[column.path_X, from_end_T] = column.values_X
    for i in range(1, padded_PL.shape[1]):
        padded_PL[:, i] += gamma * padded_PL[:, i - 1]
    return replace(column, values_X=padded_PL[column.path_X, from_end_T])


def _mean_of_others(values_X: Tensor, index_X: Tensor, among_X: Tensor | None) -> Tensor:
    """Return the mean of the key's other entries."""
    mine_X = torch.ones_like(values_X) if among_X is None else among_X.to(values_X.dtype)
    count_X, total_X = sum_per_key(mine_X, index_X), sum_per_key(values_X, index_X, among_X)
    base_X = (total_X - values_X * mine_X) / (count_X - mine_X).clamp(min=1)
    return base_X.masked_fill(count_X == 0, torch.nan)


def _mean_by_length(column: Column, batch: Batch, index_X: Tensor, among_X: Tensor | None) -> Tensor:
    """Return the mean of the key's entries, paths weighted by their sampled tokens and tokens equally."""
    weight_X = torch.ones_like(column.values_X)
    if column.unit == "path":
        weight_X = batch.path_T.bincount(minlength=batch.num_paths).to(weight_X.dtype)
    return sum_per_key(column.values_X * weight_X, index_X, among_X) / sum_per_key(weight_X, index_X, among_X)
