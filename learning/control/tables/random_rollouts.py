"""Shallow planning over random rollouts: SQIRL, and how much lookahead a world needs. B steps, S states, A actions."""

import json
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.control.buffers.buffer import Buffer
from learning.control.losses.standard import Algorithm
from learning.control.networks.build import Networks
from learning.control.stepping.transitions import read_transitions
from learning.control.tables.counts import (
    Kept,
    Planned,
    count_steps,
    find_states,
    read_table,
    require_tables,
    write_table,
)
from schemas.errors import StepError

Count = Annotated[int, Field(ge=1)]
SURE = 100.0
"""Logit of a decided action, the others' being 0: the chance of another one is below 1e-40."""


def number_steps(state_B: np.ndarray, next_B: np.ndarray, ended_B: np.ndarray) -> np.ndarray:
    """Return the place of each kept step in its episode. Raise StepError unless rows are whole episodes in order."""
    if not (ended_B[:-1] | (next_B[:-1] == state_B[1:])).all():
        raise StepError("loss sqirl: kept steps are not in order: set `num_envs: 1` and buffer_size to all steps")
    first_B = np.concatenate([[True], ended_B[:-1]])
    begins_B = np.maximum.accumulate(np.where(first_B, np.arange(len(state_B)), 0))
    return np.arange(len(state_B)) - begins_B


def sum_later_rewards(reward_B: np.ndarray, ended_B: np.ndarray) -> np.ndarray:
    """Return the sum of rewards from each step to the end of its episode."""
    total_B = reward_B.copy()
    for place in range(len(reward_B) - 2, -1, -1):
        total_B[place] += 0.0 if ended_B[place] else total_B[place + 1]
    return total_B


def fit_means(state_B: np.ndarray, action_B: np.ndarray, target_B: np.ndarray, states: int, actions: int) -> np.ndarray:
    """Return the mean target of every state and action (S, A): least squares on one-hot features; −∞ where unseen."""
    sum_SA, count_SA = np.zeros((states, actions)), np.zeros((states, actions))
    np.add.at(sum_SA, (state_B, action_B), target_B)
    np.add.at(count_SA, (state_B, action_B), 1)
    return np.divide(sum_SA, count_SA, out=np.full_like(sum_SA, -np.inf), where=count_SA > 0)


def sqirl(networks: Networks, *, lookahead: Count = 1, episodes: Count = 20) -> Algorithm:
    """Decide one step of the episode after the other, from random rollouts (SQIRL, Laidlaw et al. 2024).

    For step t, `episodes` episodes act as decided before t and at random from t on. Values at t + `lookahead` − 1 are
    fitted to the returns of random acting that followed, and brought back to t by `lookahead` − 1 backups; the best
    action at t is fixed. All episodes must begin alike, and observations show the step.
    """
    require_tables(networks, "sqirl")
    states, actions = networks.spaces.observations, networks.spaces.actions
    actor = networks.make_stochastic_actor()
    write_table(actor, np.zeros((states, actions)))

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        ended_B = (kept["terminated"] | kept["truncated"])[:, 0].numpy()
        done, left = divmod(int(ended_B.sum()), episodes)
        if left or not done or not ended_B[-1]:
            return {}
        state_B, next_B = find_states(kept["observation"]), find_states(kept["next_observation"])
        action_B, step_B, time = kept["action"].numpy(), number_steps(state_B, next_B, ended_B), done - 1
        shown = set(zip(state_B.tolist(), step_B.tolist(), strict=True))
        if len(shown) > len(set(state_B.tolist())):
            raise StepError("loss sqirl: an observation occurs at several steps of an episode; show the step in it")
        newest_B = np.cumsum(ended_B) - ended_B >= (done - 1) * episodes
        reward_B = kept["reward"][:, 0].double().numpy()
        target_B, value_SA = sum_later_rewards(reward_B, ended_B), np.full((states, actions), -np.inf)
        for depth in range(lookahead - 1, -1, -1):
            here_B = newest_B & (step_B == time + depth)
            value_SA = fit_means(state_B[here_B], action_B[here_B], target_B[here_B], states, actions)
            best_S = np.where(np.isfinite(value_SA.max(1)), value_SA.max(1), 0.0)
            target_B = reward_B + np.where(ended_B, 0.0, best_S[next_B])
        seen_S, logit_SA = np.isfinite(value_SA.max(1)), read_table(actor)
        logit_SA[seen_S] = SURE * np.eye(actions)[value_SA[seen_S].argmax(1)]
        write_table(actor, logit_SA)
        return {"decided_steps": float(done), "decided_states": float((logit_SA > 0).any(1).sum())}

    return Algorithm(Planned(actor), actor, "make_stochastic_actor", (), fit=fit)


def measure_lookahead(context: Any, *, steps: Count) -> dict[str, float]:
    """Return how much lookahead over random acting a world needs, in the model that counts the input `transitions`.

    `lookahead` is the smallest k such that each action that is best after k − 1 backups of the values of random acting
    is best in truth, in all states of the data; 1: the best action already looks best when one acts at random after
    it. Data must show every action, observations the step; episodes have at most `steps`, values are not discounted.
    """
    given = read_transitions(context.input("transitions"))
    kept = Buffer(len(given), given.spaces)
    kept.add(given)
    counts = count_steps(kept.save(), given.spaces)
    visits_SA = np.maximum(counts.visits_SA, 1)
    reward_SA, next_SAS = counts.reward_SA / visits_SA, counts.next_SAS / visits_SA[..., None]
    random_SA, best_SA = np.zeros_like(reward_SA), np.zeros_like(reward_SA)
    for _ in range(steps):
        random_SA = reward_SA + next_SAS @ random_SA.mean(1)
        best_SA = reward_SA + next_SAS @ best_SA.max(1)
    seen_S = counts.visits_SA.any(1)
    metrics = {
        "lookahead": float(find_lookahead(random_SA, best_SA, reward_SA, next_SAS, steps)),
        "random_value": float(random_SA.mean(1)[seen_S].mean()),
        "best_value": float(best_SA.max(1)[seen_S].mean()),
    }
    (context.output("result") / "lookahead.json").write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics


def find_lookahead(
    random_SA: np.ndarray, best_SA: np.ndarray, reward_SA: np.ndarray, next_SAS: np.ndarray, steps: int
) -> int:
    """Return the smallest k whose best actions, after k − 1 backups of the values of random acting, are best."""
    value_SA = random_SA
    for lookahead in range(1, steps + 1):
        looks_best_SA = value_SA >= value_SA.max(1, keepdims=True) - 1e-9
        if (best_SA >= best_SA.max(1, keepdims=True) - 1e-9)[looks_best_SA].all():
            return lookahead
        value_SA = reward_SA + next_SAS @ value_SA.max(1)
    return steps
