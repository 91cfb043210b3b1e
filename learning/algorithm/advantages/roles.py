"""Operations of the advantage pipeline on samples of roles that share episodes.

A group has the samples of one role for one problem, so that `center` and `scale` by group normalise each role alone.
Shapes: X entries of a column, T sampled tokens, S turns.
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, sum_later
from schemas.errors import StepError


def by_conversation(column: Column, batch: Batch, *, epsilon: Annotated[float, Field(ge=0)] = 1e-4) -> Column:
    """Normalise by all episodes of the problem, whichever roles spoke in them: (R − mean) / (deviation + `epsilon`).

    It is one baseline for all roles, of all policies. An episode counts once, with the mean reward of its roles; the
    deviation is that of the population. Where all episodes earned the same, the result is 0. Raise StepError in a stage
    without roles.
    """
    if "team_mean" not in batch.paths:
        raise StepError("advantage by_conversation: this stage has no `roles`; use `center` and `scale` by group")
    mean_X, deviation_X = (batch.paths[name][column.path_X] for name in ("team_mean", "team_deviation"))
    values_X = (column.values_X - mean_X) / (deviation_X + epsilon)
    return replace(column, values_X=values_X.masked_fill(deviation_X == 0, 0.0))


def gae_across_roles(
    column: Column,
    batch: Batch,
    value_T: Tensor,
    moment_T: Tensor,
    *,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95,
) -> Column:
    """GAE over the turns of all roles of an episode, in the order in which they spoke.

    A_s = Σ_k (γλ)^k δ_{s+k}, δ_s = r_s + γ·V_{s+1} − V_s, where V_s is the critic before turn s and turn s + 1 may be
    that of another role: what a role does is credited by the state in which it leaves the next one. The mean reward of
    the roles arrives with the last turn. All tokens of a turn have its advantage, and A_s + V_s as the critic's target.
    Roles of another policy have no turns here. Raise StepError in a stage without roles.
    """
    if "conversation" not in batch.paths:
        raise StepError("advantage gae_across_roles: this stage has no `roles`; use `turn_gae`")
    lifted = broadcast_to_tokens(column, batch)
    if not len(batch.path_T):
        return lifted
    conversation_P = batch.paths["conversation"]
    place_T = torch.stack([conversation_P[batch.path_T], moment_T.long()])
    place_S, index_T = place_T.unique(dim=1, return_inverse=True)
    first_S = torch.full_like(place_S[0], len(index_T)).scatter_reduce(0, index_T, torch.arange(len(index_T)), "amin")
    of_S, key_P = place_S[0], conversation_P.unique(return_inverse=True)[1]
    sum_K = torch.zeros(int(key_P.max()) + 1, dtype=torch.float64).index_add(0, key_P, batch.paths["reward"].double())
    mean_K = sum_K / key_P.bincount()
    last_S = torch.cat([of_S[1:] != of_S[:-1], torch.ones(1, dtype=torch.bool)])
    value_S, zeros_S = value_T[first_S].double(), torch.zeros(len(of_S), dtype=torch.float64)
    paid_S = mean_K[key_P[batch.path_T[first_S]]].where(last_S, zeros_S)
    delta_S = paid_S + gamma * value_S.roll(-1).where(~last_S, zeros_S) - value_S
    advantage_S = sum_later(delta_S, last_S, gamma * lam)
    return replace(lifted, values_X=advantage_S[index_T], return_X=(advantage_S + value_S)[index_T])
