"""Operations of the advantage pipeline on samples of roles that share episodes.

A group has the samples of one role for one problem, so that `center` and `scale` by group normalise each role alone.
Shapes: X entries of a column, T sampled tokens, S turns.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.columns import Column, broadcast_to_tokens, locate_in_path, sum_later
from learning.samples.engine_protocol import hash_name
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
    level: Literal["turn", "token"] = "turn",
    rewards: Literal["episode", "roles"] = "episode",
) -> Column:
    """GAE over the turns, or over the tokens, of all roles of an episode, in the order in which they spoke.

    A_s = Σ_k (γλ)^k δ_{s+k}, δ_s = r_s + γ·V_{s+1} − V_s, where V_s is the critic before turn s and turn s + 1 may be
    that of another role, of this or another trained policy: what a role does is credited by the state in which it
    leaves the next one (MARFT, Liao et al. 2025). All tokens of a turn have its advantage, and A_s + V_s as the
    critic's target. The mean reward of the policy's roles arrives with the episode's last turn (`rewards: episode`), or
    what each role earns with its own last one (`roles`). Raise StepError in a stage without roles.
    """
    if "conversation" not in batch.paths:
        raise StepError("advantage gae_across_roles: this stage has no `roles`; use `turn_gae`")
    lifted = broadcast_to_tokens(column, batch)
    if not len(batch.path_T):
        return lifted
    said = _join_turns(batch, value_T, moment_T)
    place_UX = said.place_U3 if level == "token" else said.place_U3[:, :2]
    place_SX, index_U = place_UX.unique(dim=0, return_inverse=True)
    first_S = torch.full((len(place_SX),), len(index_U)).scatter_reduce(0, index_U, torch.arange(len(index_U)), "amin")
    of_S, value_S = place_SX[:, 0], said.value_U[first_S]
    last_S, zeros_S = torch.cat([of_S[1:] != of_S[:-1], torch.ones(1, dtype=torch.bool)]), torch.zeros_like(value_S)
    if rewards == "roles":
        paid_S = zeros_S.index_add(0, index_U, said.reward_U)
    else:
        key_P = batch.paths["conversation"].unique(return_inverse=True)[1]
        sum_K = torch.zeros(int(key_P.max()) + 1, dtype=torch.float64).index_add(
            0, key_P, batch.paths["reward"].double()
        )
        paid_S = (sum_K / key_P.bincount())[of_S.unique(return_inverse=True)[1]].where(last_S, zeros_S)
    delta_S = paid_S + gamma * value_S.roll(-1).where(~last_S, zeros_S) - value_S
    advantage_S = sum_later(delta_S, last_S, gamma * lam)
    index_T = index_U[: len(batch.path_T)]
    return replace(lifted, values_X=advantage_S[index_T], return_X=(advantage_S + value_S)[index_T])


def reinforce(column: Column, batch: Batch, *, roles: Annotated[list[str], Field(min_length=1)]) -> Column:
    """Give samples of these roles their own reward, whatever was subtracted before: REINFORCE without a baseline.

    For a role that speaks once in a group, such as one that sets a task, and whose reward minus the mean of its group
    would be 0; others keep their advantage. Raise StepError in a stage without roles.
    """
    if "role" not in batch.paths:
        raise StepError("advantage reinforce: this stage has no `roles`; leave out what is subtracted instead")
    own_P = torch.isin(batch.paths["role"], torch.tensor([hash_name(role) for role in roles]))
    return replace(column, values_X=torch.where(own_P[column.path_X], column.raw_X, column.values_X))


@dataclass(frozen=True)
class _Said:
    """The tokens of all roles in the episodes of a batch (U,): first its own, then those of other policies."""

    place_U3: Tensor
    """Number of the episode, of the turn in it, and place in the order of tokens."""
    value_U: Tensor
    reward_U: Tensor


def _join_turns(batch: Batch, value_T: Tensor, moment_T: Tensor) -> _Said:
    """Return the batch's tokens and those of other policies in its episodes, each once."""
    path_T, conversation_P = batch.path_T, batch.paths["conversation"]
    before_T, after_T = locate_in_path(path_T)
    place_T3 = torch.stack([conversation_P[path_T], moment_T.long(), before_T], dim=1)
    reward_T = batch.paths["reward"][path_T].double().where(after_T == 0, torch.zeros(len(path_T), dtype=torch.float64))
    if "other_moment" not in batch.paths:
        return _Said(place_T3, value_T.double(), reward_T)
    # Several roles of one episode have the same others.
    key_P = conversation_P.unique(return_inverse=True)[1]
    first_K = torch.full((int(key_P.max()) + 1,), len(key_P)).scatter_reduce(0, key_P, torch.arange(len(key_P)), "amin")
    moment_KF = batch.paths["other_moment"][first_K].long()
    known_KF = moment_KF >= 0
    order_KF = torch.arange(moment_KF.shape[1]).expand_as(moment_KF)
    place_F3 = torch.stack([conversation_P[first_K][:, None].expand_as(moment_KF), moment_KF, order_KF], dim=-1)[
        known_KF
    ]
    others = [batch.paths[name][first_K][known_KF].double() for name in ("other_value", "other_reward")]
    return _Said(
        torch.cat([place_T3, place_F3]), torch.cat([value_T.double(), others[0]]), torch.cat([reward_T, others[1]])
    )
