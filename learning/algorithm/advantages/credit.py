"""Advantages and a critic's targets from its values: operations of the advantage pipeline that read `value`.

`value` at a sampled token is V of the state BEFORE it; that of the state after the last token of a path is in the path
column `value_end`. Tokens that the policy did not sample (prompts, observations, given beginnings) take no time: what
follows a sampled token is the next sampled one, so that neither values nor rewards are lost in between.

Shapes: P paths, T sampled tokens, L sampled tokens of the longest path.
"""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, following, place

Share = Annotated[float, Field(ge=0, le=1)]


def gae(
    column: Column,
    batch: Batch,
    value_T: Tensor,
    *,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    lam_value: Share | None = None,
    adaptive: Annotated[float, Field(gt=0)] | None = None,
    tail: Literal["bootstrap", "hold", "terminal"] = "bootstrap",
) -> Column:
    """Generalised advantage estimation: A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ·V_{t+1} − V_t (Schulman et al. 2016).

    The critic is to predict A + V with `lam_value` in place of `lam` (null: the same; 1: Monte Carlo, as VAPO,
    Yue et al. 2025, section 4.1). `adaptive` = α makes λ = max(0, 1 − 1/(α·l)) for a path of l sampled tokens (VAPO,
    section 4.2), whatever `lam` is. `tail` says what follows the last token of a truncated path: `bootstrap` the value
    of the state after it, `hold` the value before it (T-PPO's extended estimate, Fan et al. 2025), `terminal` nothing.
    After a path that ended by itself comes nothing.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    value_T = value_T.double()
    next_T = _next_value(value_T, batch, tail)
    delta_T = column.values_X + gamma * next_T - value_T
    lam_P = torch.full((batch.num_paths,), lam, dtype=torch.float64)
    if adaptive is not None:
        length_P = batch.path_T.bincount(minlength=batch.num_paths).clamp(min=1).double()
        lam_P = (1 - 1 / (adaptive * length_P)).clamp(min=0)
    target_P = lam_P if lam_value is None else torch.full_like(lam_P, lam_value)
    return_T = _discounted(delta_T, batch, gamma * target_P) + value_T
    return replace(column, values_X=_discounted(delta_T, batch, gamma * lam_P), return_X=return_T)


def value_difference(column: Column, batch: Batch, value_T: Tensor) -> Column:
    """What a token adds to the value: V_{t+1} − V_t, the path's reward coming after its last token.

    A truncated path ends in the value of its last state instead. The critic is to predict the reward itself (Monte
    Carlo), or, where a path was cut, that value.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    value_T = value_T.double()
    after_T = _next_value(value_T, batch, "bootstrap") + column.values_X
    end_T = after_T.where(place(batch.path_T)[1] == 0, torch.zeros_like(after_T))
    return_T = _discounted(end_T, batch, torch.ones(batch.num_paths, dtype=torch.float64))
    return replace(column, values_X=after_T - value_T, return_X=return_T)


def _next_value(value_T: Tensor, batch: Batch, tail: str) -> Tensor:
    """Value of the state after each sampled token (T,)."""
    path_T = batch.path_T
    ends = {"bootstrap": batch.paths["value_end"][path_T].double(), "hold": value_T}
    cut_T = batch.paths["truncated"][path_T]
    end_T = ends[tail].where(cut_T, torch.zeros_like(value_T)) if tail in ends else torch.zeros_like(value_T)
    return following(value_T, end_T, path_T)


def _discounted(values_T: Tensor, batch: Batch, factor_P: Tensor) -> Tensor:
    """Σ_k factor^k · value_{t+k} over this and the later sampled tokens of the path."""
    path_T = batch.path_T
    before_T, after_T = place(path_T)
    if not len(after_T):
        return values_T
    padded_PL = values_T.new_zeros(batch.num_paths, int(before_T.max()) + 1)
    padded_PL[path_T, after_T] = values_T
    for i in range(1, padded_PL.shape[1]):
        padded_PL[:, i] += factor_P * padded_PL[:, i - 1]
    return padded_PL[path_T, after_T]
