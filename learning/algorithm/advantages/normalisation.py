"""From rewards to advantages: small operations on a column, applied in the order of the recipe's list.

GRPO is `center(by: group)` then `scale(by: group)`; Dr.GRPO leaves out the second; RLOO centers on the mean of the
others. The column starts as one reward per path; `broadcast_to_tokens` spreads it over the sampled tokens.
Groups are found by id, never by position. A key with one member, or with equal values, gives exactly 0: rounding must
not become a signal.

An operation gets the column and the batch, and may ask for fixed columns of tokens by name, and for `state` and `rows`.
Shapes: P paths, T sampled tokens, X entries of a column (P or T).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.algorithm.advantages.credit import gae, value_difference
from learning.algorithm.advantages.estimators import best_margin, compensate, decoupled, pass_at_k, running_baseline
from learning.algorithm.advantages.maps import affine, power, sign, where
from learning.algorithm.advantages.multitask import tmn_reweight
from learning.algorithm.advantages.token_rewards import potential, rivals, stepwise
from learning.algorithm.advantages.tokenwise import entropy_share, path_consistency, token_baseline
from learning.algorithm.advantages.turns import by_turn
from learning.algorithm.token_masks.masks import Source
from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, of_rewards, place
from learning.batch.keyed import Key, among_of, deviation, equal, index_of, median, per_key, sums
from schemas.schedules import ScheduledFloat

__all__ = [
    "Column",
    "affine",
    "best_margin",
    "broadcast_to_tokens",
    "by_turn",
    "center",
    "clip",
    "compensate",
    "decoupled",
    "entropy_share",
    "gae",
    "of_rewards",
    "pass_at_k",
    "path_consistency",
    "potential",
    "power",
    "reward_to_go",
    "rivals",
    "running_baseline",
    "scale",
    "sign",
    "stepwise",
    "tmn_reweight",
    "token_baseline",
    "value_difference",
    "where",
]


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
    """Subtract a statistic of the entries with the same key, and `within` too; `loo` is the mean of the others (RLOO).

    `len_weighted` weighs paths by their sampled tokens (OPO, Hao et al. 2025); `quantile` is at `q`. `among` takes the
    statistic of entries from these sources only: `[greedy]` is ReMax's baseline. Where there is none the result is 0.
    """
    index_X, among_X = index_of(batch, column.path_X, by, within), among_of(batch, column.path_X, among)
    values_X = column.values_X
    if stat in ("loo", "len_weighted"):
        base_X = _others(values_X, index_X, among_X) if stat == "loo" else _by_length(column, batch, index_X, among_X)
    else:
        of_key: dict[str, Callable[[Tensor], Tensor]] = {
            "mean": torch.mean,
            "median": median,
            "max": torch.max,
            "quantile": partial(torch.quantile, q=q),
        }
        base_X = per_key(values_X, index_X, of_key[stat], among_X)
    same_X = equal(values_X, index_X, among_X) & (values_X == per_key(values_X, index_X, torch.max, among_X))
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
    """Divide by a spread (or mean) of the entries with the same key, and `within` too, plus `epsilon`.

    `of: raw` takes it of the rewards as they were before any operation. Where they do not differ the result is 0.
    """
    index_X, among_X = index_of(batch, column.path_X, by, within), among_of(batch, column.path_X, among)
    source_X = column.raw_X if of == "raw" else column.values_X
    of_key: dict[str, Callable[[Tensor], Tensor]] = {
        "std": partial(deviation, correction=int(unbiased)),
        "mean": torch.mean,
        "mad": lambda v: median((v - median(v)).abs()),
        "range": lambda v: v.max() - v.min(),
    }
    spread_X = per_key(source_X, index_X, of_key[stat], among_X) + epsilon
    useless_X = equal(source_X, index_X, among_X) | (spread_X == 0) | spread_X.isnan()
    return replace(column, values_X=(column.values_X / spread_X).masked_fill(useless_X, 0.0))


def clip(column: Column, batch: Batch, *, low: ScheduledFloat = -5.0, high: ScheduledFloat = 5.0) -> Column:
    """Keep values between two bounds."""
    return replace(column, values_X=column.values_X.clamp(low, high))


def reward_to_go(column: Column, batch: Batch, *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0) -> Column:
    """Discounted sum of this and the later sampled tokens of the path; tokens of others in between take no time."""
    column = broadcast_to_tokens(column, batch, at="last")
    from_start_T, from_end_T = place(column.path_X)
    if not len(from_start_T):
        return column
    padded_PL = column.values_X.new_zeros(batch.num_paths, int(from_start_T.max()) + 1)
    padded_PL[column.path_X, from_end_T] = column.values_X
    for i in range(1, padded_PL.shape[1]):
        padded_PL[:, i] += gamma * padded_PL[:, i - 1]
    return replace(column, values_X=padded_PL[column.path_X, from_end_T])


def _others(values_X: Tensor, index_X: Tensor, among_X: Tensor | None) -> Tensor:
    """Mean of the key's other entries."""
    mine_X = torch.ones_like(values_X) if among_X is None else among_X.to(values_X.dtype)
    count_X, total_X = sums(mine_X, index_X), sums(values_X, index_X, among_X)
    base_X = (total_X - values_X * mine_X) / (count_X - mine_X).clamp(min=1)
    return base_X.masked_fill(count_X == 0, torch.nan)


def _by_length(column: Column, batch: Batch, index_X: Tensor, among_X: Tensor | None) -> Tensor:
    """Mean of the key's entries, each path weighing as its sampled tokens (a token as one)."""
    weight_X = torch.ones_like(column.values_X)
    if column.unit == "path":
        weight_X = batch.path_T.bincount(minlength=batch.num_paths).to(weight_X.dtype)
    return sums(column.values_X * weight_X, index_X, among_X) / sums(weight_X, index_X, among_X)
