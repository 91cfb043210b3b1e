"""Natural policy gradient on tables, with a critic of the newest steps and of data of others (Zhou et al. 2023).

Shapes: N worlds, S steps of each in a rollout, B steps; in tables S states, A actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.control.losses.standard import Algorithm, Share
from learning.control.networks.build import Networks
from learning.control.tables.counts import Kept, Planned, find_states, read_table, require_tables, write_table


@dataclass(frozen=True)
class Targets:
    """Steps whose value is what was `earned`, and `reach` times the value of the state `after`."""

    state_B: np.ndarray
    action_B: np.ndarray
    earned_B: np.ndarray
    reach_B: np.ndarray
    after_B: np.ndarray
    weight: float = 1.0
    """Weight of their mean squared error."""


def follow_returns(batch: Any, gamma: float) -> Targets:
    """Return the discounted returns of a rollout (N, S) to the end of each episode, or to where it is cut off."""
    following = batch["next"]
    reward_NS = following["reward"][..., 0].double().numpy()
    ended_NS, done_NS = (following[name][..., 0].numpy() for name in ("terminated", "done"))
    after_NS = find_states(following["observation"].flatten(0, 1)).reshape(reward_NS.shape)
    earned_NS, reach_NS = reward_NS.copy(), gamma * ~ended_NS
    last_NS = after_NS.copy()
    for step in range(reward_NS.shape[1] - 2, -1, -1):
        goes_on_N = ~done_NS[:, step]
        earned_NS[:, step] += gamma * goes_on_N * earned_NS[:, step + 1]
        reach_NS[:, step] = np.where(goes_on_N, gamma * reach_NS[:, step + 1], reach_NS[:, step])
        last_NS[:, step] = np.where(goes_on_N, last_NS[:, step + 1], last_NS[:, step])
    state_B = find_states(batch["observation"].flatten(0, 1))
    action_B = batch["action"].flatten().numpy()
    return Targets(state_B, action_B, earned_NS.reshape(-1), reach_NS.reshape(-1), last_NS.reshape(-1))


def take_one_step(kept: Kept, gamma: float, weight: float) -> Targets:
    """Return the one-step targets r + γ V(s') of data of others."""
    return Targets(
        find_states(kept["observation"]),
        kept["action"].numpy(),
        kept["reward"][:, 0].double().numpy(),
        gamma * ~kept["terminated"][:, 0].numpy(),
        find_states(kept["next_observation"]),
        weight,
    )


def fit_values(parts: Sequence[Targets], policy_SA: np.ndarray, sweeps: int) -> np.ndarray:
    """Return the table Q of the smallest Σ weight · mean (Q(s, a) − target)², V being the policy's mean of Q.

    `sweeps` times, each with the values of the last. A pair that no part holds is as good as the policy is there.
    """
    mass_SA = np.zeros_like(policy_SA)
    for part in parts:
        np.add.at(mass_SA, (part.state_B, part.action_B), part.weight / len(part.state_B))
    is_known_SA = mass_SA > 0
    known_SA = policy_SA * is_known_SA
    share_S = known_SA.sum(1)
    value_SA, value_S = np.zeros_like(policy_SA), np.zeros(len(policy_SA))
    for _ in range(sweeps):
        total_SA = np.zeros_like(policy_SA)
        for part in parts:
            target_B = part.earned_B + part.reach_B * value_S[part.after_B]
            np.add.at(total_SA, (part.state_B, part.action_B), part.weight / len(part.state_B) * target_B)
        fitted_SA = np.divide(total_SA, mass_SA, out=np.zeros_like(total_SA), where=is_known_SA)
        value_S = np.divide((known_SA * fitted_SA).sum(1), share_S, out=np.zeros_like(share_S), where=share_S > 0)
        value_SA = np.where(is_known_SA, fitted_SA, value_S[:, None])
    return value_SA


def hybrid_npg(
    networks: Networks,
    *,
    gamma: Share = 1.0,
    step_size: Annotated[float, Field(gt=0)] = 1.0,
    offline_weight: Annotated[float, Field(ge=0)] = 1.0,
    sweeps: Annotated[int, Field(ge=1)] = 20,
) -> Algorithm:
    """Natural policy gradient on tables, π ← π · exp(η A), after each rollout (Kakade 2001; Zhou et al. 2023).

    Q is fitted to the returns of the newest steps and, with `offline_weight`, to r + γ V(s') of `data`, whose V is
    the present policy's. Without `data` it is the natural policy gradient alone. η is `step_size`; `sweeps` at least
    the steps of an episode reach the values of its first step.
    """
    require_tables(networks, "hybrid_npg")
    actor = networks.make_stochastic_actor()
    write_table(actor, np.zeros((networks.spaces.observations, networks.spaces.actions)))

    def fit(newest: Any, data: Kept | None, rng: np.random.Generator) -> dict[str, float]:
        logit_SA = read_table(actor)
        policy_SA = np.exp(logit_SA - logit_SA.max(1, keepdims=True))
        policy_SA /= policy_SA.sum(1, keepdims=True)
        parts = [follow_returns(newest, gamma)]
        if data is not None:
            parts.append(take_one_step(data, gamma, offline_weight))
        value_SA = fit_values(parts, policy_SA, sweeps)
        logit_SA = logit_SA + step_size * (value_SA - (policy_SA * value_SA).sum(1, keepdims=True))
        write_table(actor, logit_SA - logit_SA.max(1, keepdims=True))
        return {"mean_return_to_go": float(parts[0].earned_B.mean()), "largest_value": float(value_SA.max())}

    return Algorithm(Planned(actor), actor, "make_stochastic_actor", (), fit_newest=fit)
