"""Operations of the advantage pipeline that compute advantages and a critic's targets from its values.

`value` at a sampled token is V of the state BEFORE it; V of the state after the last token of a path is in the path
column `value_end`. Tokens that the policy did not sample (prompts, observations, given beginnings) are skipped: the
successor of a sampled token is the next sampled one, so that no value or reward in between is lost.

Shapes: P paths, T sampled tokens, S turns of all paths, L sampled tokens of the longest path.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import (
    Column,
    broadcast_to_tokens,
    get_auxiliary,
    locate_in_path,
    require_paths,
    take_next_token,
)

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
    """GAE: A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ·V_{t+1} − V_t (Schulman et al. 2016).

    The critic's target is A + V with `lam_value` in place of `lam` (null: the same; 1: Monte Carlo, as in VAPO, Yue et
    al. 2025, section 4.1). `adaptive` = α replaces `lam` by λ = max(0, 1 − 1/(α·l)) for a path of l sampled tokens
    (VAPO, section 4.2). `tail` is the value after the last token of a truncated path: `bootstrap` that of the state
    after it, `hold` that before it (T-PPO's extended estimate, Fan et al. 2025), `terminal` 0. After a path that was
    not truncated the value is 0.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    value_T = value_T.double()
    next_T = _read_next_value(value_T, batch, tail)
    delta_T = column.values_X + gamma * next_T - value_T
    lam_P = torch.full((batch.num_paths,), lam, dtype=torch.float64)
    if adaptive is not None:
        length_P = batch.path_T.bincount(minlength=batch.num_paths).clamp(min=1).double()
        lam_P = (1 - 1 / (adaptive * length_P)).clamp(min=0)
    target_P = lam_P if lam_value is None else torch.full_like(lam_P, lam_value)
    return_T = _sum_discounted(delta_T, batch, gamma * target_P) + value_T
    return replace(column, values_X=_sum_discounted(delta_T, batch, gamma * lam_P), return_X=return_T)


def value_difference(column: Column, batch: Batch, value_T: Tensor) -> Column:
    """Increase of the value by a token: V_{t+1} − V_t, with the path's reward after its last token.

    A truncated path ends in the value of its last state instead. The critic's target is the reward (Monte Carlo), or
    that value for a truncated path.
    """
    column = broadcast_to_tokens(column, batch, at="last")
    value_T = value_T.double()
    after_T = _read_next_value(value_T, batch, "bootstrap") + column.values_X
    end_T = after_T.where(locate_in_path(batch.path_T)[1] == 0, torch.zeros_like(after_T))
    return_T = _sum_discounted(end_T, batch, torch.ones(batch.num_paths, dtype=torch.float64))
    return replace(column, values_X=after_T - value_T, return_X=return_T)


def turn_differences(
    column: Column, batch: Batch, auxiliary_T: Mapping[str, Tensor], turn_T: Tensor, *, of: str
) -> Column:
    """Give every turn the increase of the value `of` by it: V before the next turn minus V before it (DAPO 2024).

    `of` is an auxiliary model with `head: state`, which is not trained: the critic is learnt before, and alone (Liu et
    al. 2024, direct advantage policy optimisation). The last turn leads to what the operations before made of the
    reward. Raise StepError after an operation on tokens.
    """
    reward_P = require_paths(column, "turn_differences").values_X
    lifted, path_T = broadcast_to_tokens(column, batch), batch.path_T
    if not len(path_T):
        return lifted
    pairs_2S, index_T = torch.stack([path_T, turn_T]).unique(dim=1, return_inverse=True)
    path_S = pairs_2S[0]  # sorted by path, then by turn
    last_S = torch.cat([path_S[1:] != path_S[:-1], torch.ones(1, dtype=torch.bool)])
    first_S = torch.full_like(path_S, len(path_T)).scatter_reduce(0, index_T, torch.arange(len(path_T)), "amin")
    value_S = get_auxiliary(auxiliary_T, of, "advantage turn_differences")[first_S]
    after_S = torch.where(last_S, reward_P[path_S].double(), value_S.roll(-1))
    return replace(lifted, values_X=(after_S - value_S)[index_T])


def _read_next_value(value_T: Tensor, batch: Batch, tail: str) -> Tensor:
    """Return the value of the state after each sampled token (T,)."""
    path_T = batch.path_T
    ends = {"bootstrap": batch.paths["value_end"][path_T].double(), "hold": value_T}
    cut_T = batch.paths["truncated"][path_T]
    end_T = ends[tail].where(cut_T, torch.zeros_like(value_T)) if tail in ends else torch.zeros_like(value_T)
    return take_next_token(value_T, end_T, path_T)


def _sum_discounted(values_T: Tensor, batch: Batch, factor_P: Tensor) -> Tensor:
    """Return Σ_k factor^k · value_{t+k} over this and the later sampled tokens of the path."""
    path_T = batch.path_T
    before_T, after_T = locate_in_path(path_T)
    if not len(after_T):
        return values_T
    padded_PL = values_T.new_zeros(batch.num_paths, int(before_T.max()) + 1)
    padded_PL[path_T, after_T] = values_T
    for i in range(1, padded_PL.shape[1]):
        padded_PL[:, i] += factor_P * padded_PL[:, i - 1]
    return padded_PL[path_T, after_T]
