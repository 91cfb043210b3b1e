"""Operations of the advantage pipeline on the turns of an episode.

Shapes: P paths, T sampled tokens, S turns of all paths that took an action in a state (steps).
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
    Key,
    apply_per_key,
    broadcast_to_tokens,
    center_per_key,
    find_turn_ends,
    get_auxiliary,
    index_keys,
    locate_in_path,
    require_paths,
    standardise_per_key,
    sum_later,
)
from learning.samples.engine_protocol import hash_name
from schemas.number_schedules import ScheduledFloat


def by_turn(column: Column, batch: Batch, earned_T: Tensor) -> Column:
    """Replace the reward of the episode by that of the token's own turn.

    An unfinished turn has reward 0. The operations after it in the list work on tokens.
    """
    return replace(broadcast_to_tokens(column, batch), values_X=earned_T.double())


def anchor_states(
    column: Column,
    batch: Batch,
    state_T: Tensor,
    turn_T: Tensor,
    earned_T: Tensor,
    *,
    weight: ScheduledFloat = 1.0,
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95,
    scale: Literal["none", "std"] = "none",
    rewards: Literal["episode", "turns"] = "episode",
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Add `weight` · the advantage of a turn among those that a group took in the same state (GiGPO, Feng et al. 2025).

    The return of a turn is the sum of its and later rewards, discounted by `gamma` per action: the episode's reward
    arrives after its last action (`rewards: episode`), or every action earns what the environment paid for it
    (`turns`).
    The advantage is the return minus the mean over the group's turns in an equal state, of any episode and any time,
    with `scale: std` over their standard deviation. A state that was seen once gives 0. A memory belongs to the step of
    the next action; a turn that the environment did not answer, and a completion without turns, get 0.
    """
    column = broadcast_to_tokens(column, batch)
    path_T, group_T = batch.path_T, batch.paths["group"][batch.path_T]
    acted_T = state_T != 0
    if not bool(acted_T.any()):
        return column
    # One entry per step, in the order of (path, turn).
    width = int(turn_T.max()) + 1
    place_T = path_T * width + turn_T
    place_S, index_T = place_T[acted_T].unique(return_inverse=True)
    path_S, last_S = _find_ends(place_S, width)
    first_S = torch.full_like(place_S, len(path_T)).scatter_reduce(0, index_T, acted_T.nonzero()[:, 0], "amin")
    paid_S = earned_T[first_S].double()
    if rewards == "episode":
        paid_S = batch.paths["reward"][path_S].where(last_S, torch.zeros_like(paid_S))
    return_S = sum_later(paid_S, last_S, gamma)
    key_S = torch.stack([group_T[first_S], state_T[first_S]]).unique(dim=1, return_inverse=True)[1]
    step_S = center_per_key(return_S, key_S) if scale == "none" else standardise_per_key(return_S, key_S, epsilon)
    # A turn without a state of its own takes the next step of its path.
    next_T = torch.searchsorted(place_S, place_T).clamp(max=len(place_S) - 1)
    own_T = (path_S[next_T] == path_T) & (place_S[next_T] >= place_T)
    step_T = step_S[next_T].where(own_T, torch.zeros_like(column.values_X))
    return replace(column, values_X=column.values_X + weight * step_T)


def information_gain(
    column: Column,
    batch: Batch,
    gain_T: Tensor,
    turn_T: Tensor,
    *,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Turns are rewarded for what they tell the policy about the answer (IGPO, Wang et al. 2025).

    The reward of a turn is the change of the policy's probability of the row's answer (column `gain_T`), that of the
    last turn the reward of the episode. All of a group are normalised together, and the advantage of a turn is the sum
    of its own and the later ones of its episode, discounted by `gamma` per turn.
    """
    path_T = batch.path_T
    if not len(path_T):
        return broadcast_to_tokens(column, batch)
    index_T, path_S, last_S = _number_turns(path_T, turn_T)
    reward_S = torch.zeros(len(path_S), dtype=torch.float64).index_put((index_T,), gain_T.double())
    reward_S = torch.where(last_S, batch.paths["reward"][path_S], reward_S)
    key_S = batch.paths["group"][path_S].unique(return_inverse=True)[1]
    raw_T = broadcast_to_tokens(column, batch).raw_X
    scaled_S = standardise_per_key(reward_S, key_S, epsilon, correction=0)
    return Column(sum_later(scaled_S, last_S, gamma)[index_T], raw_T, path_T, "token", column.return_X)


def information_shares(
    column: Column, batch: Batch, shapley_T: Tensor, turn_T: Tensor, *, weight: ScheduledFloat = 1.0
) -> Column:
    """Add `weight` · the Shapley value of every turn for the policy's probability of the answer, at its last token.

    Two turns that learn the same share what it is worth, whichever came first (column `shapley_T`, ProMed 2025). The
    reward of the episode is at its last token. Put `reward_to_go` or `gae` after it.
    """
    placed = broadcast_to_tokens(column, batch, at="last")
    ends_T = find_turn_ends(batch.path_T, turn_T)
    shares_T = shapley_T.double().where(ends_T, torch.zeros(len(batch.path_T), dtype=torch.float64))
    return replace(placed, values_X=placed.values_X + weight * shares_T)


def discounted_outcome(
    column: Column,
    batch: Batch,
    turn_T: Tensor,
    *,
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.95,
    normalise: Literal["none", "group"] = "group",
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Give every turn the reward of its episode, discounted for the turns after it (IterResearch, Chen et al. 2025).

    Turn t of T has γ^(T−t) · R, so that the same outcome is worth more in fewer turns. R is what the operations before
    made of the reward: after `center` it is the episode's advantage. With `normalise: group` the advantage is that
    value minus the mean over all turns of the group, over their standard deviation: a turn counts once, however long
    it is.
    Raise StepError after an operation on tokens.
    """
    value_P = require_paths(column, "discounted_outcome").values_X
    lifted = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    if not len(path_T):
        return lifted
    index_T, path_S, last_S = _number_turns(path_T, turn_T)
    reward_S = value_P[path_S].where(last_S, torch.zeros(len(path_S), dtype=torch.float64))
    value_S = sum_later(reward_S, last_S, gamma)
    if normalise == "group":
        group_S = batch.paths["group"][path_S]
        value_S = standardise_per_key(value_S, group_S.unique(return_inverse=True)[1], epsilon)
    return replace(lifted, values_X=value_S[index_T])


def turn_returns(
    column: Column,
    batch: Batch,
    earned_T: Tensor,
    turn_T: Tensor,
    *,
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0,
    normalise: Literal["returns", "rewards", "none"] = "returns",
    by: Key = "group",
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Give every turn what it and the later turns of its episode earned, discounted by `gamma` per turn.

    `returns` normalises these sums over all turns of the key (sum, then normalise: MARS, Yuan et al. 2025), `rewards`
    normalises what single turns earned and then sums it up, which grows with the number of turns. Deviations are those
    of the population, and a turn counts once, however long it is.
    """
    lifted = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    if not len(path_T):
        return lifted
    index_T, path_S, last_S = _number_turns(path_T, turn_T)
    key_S = index_keys(batch, path_S, by)
    value_S = torch.zeros(len(path_S), dtype=torch.float64).index_put((index_T,), earned_T.double())
    if normalise == "rewards":
        value_S = standardise_per_key(value_S, key_S, epsilon, correction=0)
    value_S = sum_later(value_S, last_S, gamma)
    if normalise == "returns":
        value_S = standardise_per_key(value_S, key_S, epsilon, correction=0)
    return replace(lifted, values_X=value_S[index_T])


def outcome_weighted_turns(
    column: Column,
    batch: Batch,
    earned_T: Tensor,
    turn_T: Tensor,
    *,
    base: float = 2.0,
    bonus: float = 1.0,
    outcome: float = 3.0,
    at_least: float = 1.0,
) -> Column:
    """Pay questions for what they learnt, more if the episode succeeded, and its end for success alone (ProMed 2025).

    Every turn but the last gets (base + bonus·s) · what the environment paid it, the last turn of an episode that ended
    outcome·s, with s = 1 if the reward of the episode is `at_least` so high, else 0. The last turn of a truncated
    episode is a turn like the others. ProMed's baseline is the mean over all tokens of the group: put
    `{use: center, by: group}` after it.
    """
    lifted = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    if not len(path_T):
        return lifted
    index_T, path_S, last_S = _number_turns(path_T, turn_T)
    success_S = (batch.paths["reward"][path_S] >= at_least).double()
    paid_S = torch.zeros(len(path_S), dtype=torch.float64).index_put((index_T,), earned_T.double())
    concludes_S = last_S & ~batch.paths["truncated"][path_S].bool()
    value_S = torch.where(concludes_S, outcome * success_S, (base + bonus * success_S) * paid_S)
    return replace(lifted, values_X=value_S[index_T])


def contributions(
    column: Column,
    batch: Batch,
    auxiliary_T: Mapping[str, Tensor],
    turn_T: Tensor,
    ok_T: Tensor,
    *,
    of: str,
    grounding: Annotated[float, Field(ge=0)] = 0.5,
    outcome: float = 0.0,
) -> Column:
    """Replace the reward of the episode by contributions of its turns, at their last tokens (SPA-RL, Wang et al. 2025).

    A turn earns the value of the auxiliary model `of` (`head: turns`, whose values add up to an estimate of the
    episode's reward) plus `grounding` if the environment carried it out. `outcome` times the episode's reward is added
    at the last token. Put `gae` or `reward_to_go` after it.
    """
    rewards = broadcast_to_tokens(column, batch, at="last")
    end_T = find_turn_ends(batch.path_T, turn_T)
    earned_T = get_auxiliary(auxiliary_T, of, "advantage contributions") + grounding * ok_T.double()
    earned_T = earned_T.where(end_T, torch.zeros_like(earned_T))
    return replace(rewards, values_X=outcome * rewards.values_X + earned_T)


def turn_gae(
    column: Column,
    batch: Batch,
    value_T: Tensor,
    earned_T: Tensor,
    turn_T: Tensor,
    *,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95,
    rewards: Literal["episode", "turns"] = "episode",
) -> Column:
    """GAE over turns: A_s = Σ_k (γλ)^k δ_{s+k}, δ_s = r_s + γ·V_{s+1} − V_s, V_s the critic before turn s.

    All tokens of a turn have its advantage, and A_s + V_s as the critic's target, so that the critic estimates turns.
    The episode's reward arrives with its last turn (`rewards: episode`), or every turn earns what the environment paid
    for it (`turns`). After the last turn of a truncated episode V is that of its end, else 0.
    """
    lifted = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    if not len(path_T):
        return lifted
    index_T, path_S, last_S = _number_turns(path_T, turn_T)
    first_S = torch.full_like(path_S, len(path_T)).scatter_reduce(0, index_T, torch.arange(len(path_T)), "amin")
    value_S, paid_S = value_T[first_S].double(), earned_T[first_S].double()
    if rewards == "episode":
        paid_S = batch.paths["reward"][path_S].double().where(last_S, torch.zeros_like(paid_S))
    end_S = batch.paths["value_end"][path_S].double() * batch.paths["truncated"][path_S]
    next_S = torch.where(last_S, end_S, value_S.roll(-1))
    advantage_S = sum_later(paid_S + gamma * next_S - value_S, last_S, gamma * lam)
    return replace(lifted, values_X=advantage_S[index_T], return_X=(advantage_S + value_S)[index_T])


def gated_turns(
    column: Column, batch: Batch, earned_T: Tensor, turn_T: Tensor, *, at_least: float, weight: ScheduledFloat = 1.0
) -> Column:
    """Add `weight` · the reward of every turn, but only in episodes whose reward is `at_least` so high (G-RA 2025).

    Rewards of turns then cannot pay for failing at the task. The rewards are at the last tokens of their turns: put
    `reward_to_go` or `gae` after it.
    """
    placed = broadcast_to_tokens(column, batch, at="last")
    counts_T = find_turn_ends(batch.path_T, turn_T) & (batch.paths["reward"] >= at_least)[batch.path_T]
    gained_T = earned_T.double().where(counts_T, torch.zeros(len(batch.path_T), dtype=torch.float64))
    return replace(placed, values_X=placed.values_X + weight * gained_T)


def merits(
    column: Column,
    batch: Batch,
    merit_T: Tensor,
    kind_T: Tensor,
    turn_T: Tensor,
    *,
    weight: ScheduledFloat = 1.0,
    by: Key = "group",
    scale: Literal["none", "std"] = "none",
    at_least: dict[str, float] = {},  # noqa: B006 — never written to
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Add `weight` · the merit of a turn among the turns of its kind in the group (RLVMR, Zhang et al. 2025).

    Environments name the kind of a turn, such as a tag that the model writes, and pay by a rule for it (`tagged`). The
    advantage of a turn is its merit minus the mean over the turns of that kind, with `scale: std` over their deviation;
    a turn without a kind gets 0. `at_least: {planning: 1}` counts merits of a kind as 0 in episodes with a lower
    reward.
    """
    column = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    if not len(path_T):
        return column
    index_T, path_S, _ = _number_turns(path_T, turn_T)
    zeros_S = torch.zeros(len(path_S), dtype=torch.float64)
    merit_S = zeros_S.index_put((index_T,), merit_T.double())
    kind_S = zeros_S.long().index_put((index_T,), kind_T)
    for kind, least in at_least.items():
        failed_S = (kind_S == hash_name(kind)) & (batch.paths["reward"][path_S] < least)
        merit_S = merit_S.masked_fill(failed_S, 0.0)
    key_S = torch.stack([index_keys(batch, path_S, by), kind_S]).unique(dim=1, return_inverse=True)[1]
    value_S = center_per_key(merit_S, key_S) if scale == "none" else standardise_per_key(merit_S, key_S, epsilon)
    value_S = value_S.masked_fill(kind_S == 0, 0.0)
    return replace(column, values_X=column.values_X + weight * value_S[index_T])


def by_kind(
    column: Column,
    batch: Batch,
    earned_T: Tensor,
    kind_T: Tensor,
    turn_T: Tensor,
    *,
    by: Key = "group",
    scale: Literal["none", "std"] = "std",
    epsilon: Annotated[float, Field(ge=0)] = 1e-6,
) -> Column:
    """Give turns of a kind what all of them earned in the episode, compared with that kind in other episodes.

    Environments name the kind of a turn, such as the request of a user that it belongs to (`requests`). The advantage
    is the sum minus the mean over the episodes of the key that have turns of this kind, with `scale: std` over their
    population deviation: what the turns of one request earned changes no other request. A turn without a kind,
    such as one that was cut off, gets 0.
    """
    column = broadcast_to_tokens(column, batch)
    path_T = batch.path_T
    if not len(path_T):
        return column
    index_T, path_S, _ = _number_turns(path_T, turn_T)
    zeros_S = torch.zeros(len(path_S), dtype=torch.float64)
    earned_S = zeros_S.index_put((index_T,), earned_T.double())
    kind_S = zeros_S.long().index_put((index_T,), kind_T)
    pairs_K, index_S = torch.stack([path_S, kind_S]).unique(dim=1, return_inverse=True)
    sum_K = torch.zeros(pairs_K.shape[1], dtype=torch.float64).index_add(0, index_S, earned_S)
    key_K = torch.stack([index_keys(batch, pairs_K[0], by), pairs_K[1]]).unique(dim=1, return_inverse=True)[1]
    value_K = center_per_key(sum_K, key_K) if scale == "none" else standardise_per_key(sum_K, key_K, epsilon, 0)
    value_K = value_K.masked_fill(pairs_K[1] == 0, 0.0)
    return replace(column, values_X=value_K[index_S][index_T])


def shared_tokens(column: Column, batch: Batch, origin_T: Tensor) -> Column:
    """Give a token that several branches of an episode share the mean of their advantages (ARPO's hard attribution).

    Branches come from the rollout `branching`. Without this operation each copy of a shared token has the advantage of
    its own branch (soft attribution).
    """
    column = broadcast_to_tokens(column, batch)
    key_T = torch.stack([origin_T, locate_in_path(batch.path_T)[0]]).unique(dim=1, return_inverse=True)[1]
    mean_T = apply_per_key(column.values_X, key_T, torch.mean)
    return replace(column, values_X=torch.where(origin_T != 0, mean_T, column.values_X))


def _number_turns(path_T: Tensor, turn_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of the turn of every token, the path of each turn, and whether it is the last of its path."""
    width = int(turn_T.max()) + 1
    place_S, index_T = (path_T * width + turn_T).unique(return_inverse=True)
    return index_T, *_find_ends(place_S, width)


def _find_ends(place_S: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the path of each turn, of sorted places path · width + turn, and whether it is the last of its path."""
    path_S = place_S // width
    return path_S, torch.cat([path_S[1:] != path_S[:-1], torch.ones(1, dtype=torch.bool)])
