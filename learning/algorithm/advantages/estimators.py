"""Operations of the advantage pipeline on one number per path, other than by a mean and a spread.

Shapes: P paths.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import comb
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, Key, are_equal_per_key, index_keys, require_paths, standardise_per_key
from learning.data.rows import Row
from learning.samples.sample import SOURCES, Source
from schemas.errors import StepError


def pass_at_k(
    column: Column, batch: Batch, *, k: Annotated[int, Field(ge=1)] = 4, above: float = 0.0, by: Key = "group"
) -> Column:
    """Advantage for the pass@k objective, in closed form (Pass@k Training, Chen et al. 2025, section 2.4).

    With n completions, c of them right (reward above `above`): R = 1 − C(n−c, k)/C(n, k), σ = √(R(1−R)); right ones
    get (1 − R)/σ, wrong ones (1 − R − C(n−c−1, k−1)/C(n−1, k−1))/σ; 0 where σ is 0. Raise StepError if n < k.
    """
    index_P = index_keys(batch, require_paths(column, "pass_at_k").path_X, by)
    right_P = column.values_X > above
    values_P = torch.zeros_like(column.values_X)
    for key in index_P.unique():
        member_P = index_P == key
        n, c = int(member_P.sum()), int((member_P & right_P).sum())
        if n < k:
            raise StepError(f"advantage pass_at_k: k is {k}, but a group has only {n} completions; lower k")
        share = 1 - comb(n - c, k) / comb(n, k)
        deviation = (share * (1 - share)) ** 0.5
        if deviation > 0:
            values_P[member_P & right_P] = (1 - share) / deviation
            missed = comb(n - c - 1, k - 1) / comb(n - 1, k - 1)
            values_P[member_P & ~right_P] = (1 - share - missed) / deviation
    return replace(column, values_X=values_P)


def best_margin(column: Column, batch: Batch, *, by: Key = "group") -> Column:
    """The best of the group gets its lead over the second best, the others 0 (Tang et al. 2025, arXiv:2503.19595).

    This is how much the completion raises the group's maximum: a leave-one-out estimate for best-of-n.
    """
    index_P = index_keys(batch, column.path_X, by)
    values_P = torch.zeros_like(column.values_X)
    for key in index_P.unique():
        places = (index_P == key).nonzero()[:, 0]
        if len(places) > 1:
            best = column.values_X[places].topk(2)
            values_P[places[best.indices[0]]] = best.values[0] - best.values[1]
    return replace(column, values_X=values_P)


def compensate(column: Column, batch: Batch, *, by: Key = "group") -> Column:
    """Multiply by B/(B − M), where M of the B entries are in groups of equal raw rewards (GPG, Chu et al. 2025)."""
    flat_X = are_equal_per_key(column.raw_X, index_keys(batch, column.path_X, by))
    return replace(column, values_X=column.values_X * (len(flat_X) / max(1, int((~flat_X).sum()))))


def decoupled(
    column: Column,
    batch: Batch,
    scores_P: Mapping[str, Tensor],
    *,
    weights: dict[str, float] | None = None,
    by: Key = "group",
    epsilon: Annotated[float, Field(ge=0)] = 1e-4,
) -> Column:
    """Normalise each reward on its own in the group, then take the weighted sum (GDPO, Liu et al. 2026, eq. 4-5).

    `weights` are by name of the reward (null: 1 each); those of the recipe's `rewards` are not used. Raise StepError if
    the stage has no reward of that name.
    """
    index_P = index_keys(batch, require_paths(column, "decoupled").path_X, by)
    weights = dict.fromkeys(scores_P, 1.0) if weights is None else weights
    if unknown := sorted(weights.keys() - scores_P.keys()):
        names = ", ".join(scores_P)
        raise StepError(f"advantage decoupled: no reward {unknown[0]!r} in this stage; it has: {names}")
    values_P = torch.zeros_like(column.values_X)
    for name, weight in weights.items():
        values_P += weight * standardise_per_key(scores_P[name], index_P, epsilon)
    return replace(column, values_X=values_P)


def running_baseline(
    column: Column,
    batch: Batch,
    rows: list[Row],
    state: dict[str, float],
    *,
    by: Literal["batch", "prompt", "family"] = "family",
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95,
) -> Column:
    """Subtract the moving average of earlier iterations' values (role-conditioned baselines, Liu et al. 2025, SPIRAL).

    The average of a key starts as the mean of its first values. It is updated after it has been subtracted, so that a
    completion does not move its own baseline.
    """
    require_paths(column, "running_baseline")
    key_of = {"batch": lambda row: "", "prompt": lambda row: str(row["id"]), "family": lambda row: row["family"] or ""}
    keys = [key_of[by](row) for row in rows]
    values_P = column.values_X.clone()
    for key in dict.fromkeys(keys):
        member_P = torch.tensor([k == key for k in keys])
        mean = float(column.values_X[member_P].mean())
        baseline = state.get(key, mean)
        values_P[member_P] -= baseline
        state[key] = decay * baseline + (1 - decay) * mean
    return replace(column, values_X=values_P)


def recent_baseline(
    column: Column,
    batch: Batch,
    state: dict[str, list[float]],
    *,
    of: list[Source] = ["replay"],  # noqa: B006 — never written to
    q: Annotated[float, Field(ge=0, le=1)] = 0.5,
    window: Annotated[int, Field(ge=1)] = 640,
) -> Column:
    """Replace the values of the sources `of` by reward − the `q`-quantile of recent groups' mean rewards (SPEAR 2025).

    For stored completions, whose advantage was that of an older policy: the groups are the last `window` ones of all
    other sources, those of this iteration included, so that the baseline rises with the policy. Values of other
    completions do not change. Put it last, and leave out what is not above the baseline by `token_mask: [{use:
    positive_of, of: [replay]}]`.
    """
    require_paths(column, "recent_baseline")
    stored_P = torch.isin(batch.paths["source"], torch.tensor([SOURCES.index(name) for name in of]))
    reward_P, group_P = batch.paths["reward"].double(), batch.paths["group"]
    means = [float(reward_P[(group_P == group) & ~stored_P].mean()) for group in group_P[~stored_P].unique()]
    recent = state["means"] = [*state.get("means", []), *means][-window:]
    if not recent:
        return column
    baseline = torch.tensor(recent, dtype=torch.float64).quantile(q)
    return replace(column, values_X=torch.where(stored_P, reward_P - baseline, column.values_X))
