"""Explanations of a control policy, by what they explain: its model, its rewards, what it looks at, its task.

The four classes are those of the survey of Qing et al. (2022). Shapes: N steps, O numbers of an observation, K
objectives, S states, A choices.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
import torch
from pydantic import Field

from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.reports.surrogate_tree import Tree, fit_tree
from learning.control.stepping.spaces import Spaces, read_spaces
from learning.lookup import Inner
from schemas.base import JsonObject
from schemas.control import ActingUse, WorldUse
from schemas.errors import StepError

if TYPE_CHECKING:
    WorldFunction = Inner
    ActingFunction = Inner
else:
    WorldFunction = WorldUse
    ActingFunction = ActingUse
Explained = Literal["model", "reward", "state", "task"]
"""What an explanation is about."""
Count = Annotated[int, Field(ge=1)]
FILE = "explanation.json"


@dataclass(frozen=True)
class Played:
    """Steps of whole episodes in their order, with the parts of every reward."""

    observation_NO: np.ndarray
    action_N: np.ndarray
    reward_NK: np.ndarray
    """Parts of the reward, as the world gives them in `objectives`; else the reward alone."""
    total_N: np.ndarray
    """The reward that the policy was trained on."""
    next_NO: np.ndarray
    terminated_N: np.ndarray
    episode_N: np.ndarray


def play_episodes(make: Callable[[], Any], policy: ControlPolicy, episodes: int, seed: int, epsilon: float) -> Played:
    """Return episodes in which a policy acts, but for a share `epsilon` of random choices."""
    world, rng = make(), np.random.default_rng([seed, 5])
    spaces = read_spaces(world)
    spaces.require(policy.spaces, "policy")
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        shown, ended = world.reset(seed=int(rng.integers(2**31)))[0], False
        while not ended:
            seen_O = spaces.flatten(world, shown)
            action = int(policy.act(seen_O[None], explore=False)[0])
            if rng.random() < epsilon:
                action = int(rng.integers(spaces.actions))
            shown, reward, terminated, truncated, info = world.step(spaces.to_world(np.array(action)))
            ended = terminated or truncated
            parts = np.atleast_1d(np.asarray(info.get("objectives", reward), float))
            after_O = spaces.flatten(world, shown)
            rows.append((seen_O, action, parts, float(reward), after_O, terminated, episode))
    world.close()
    return Played(*(np.array(column) for column in zip(*rows, strict=True)))


def explain_model(played: Played, policy: ControlPolicy, spaces: Spaces, depth: int) -> JsonObject:
    """Return a tree of questions about the observation that acts as the policy does, and how often it does."""
    action_N = policy.act(played.observation_NO, explore=False)
    tree = fit_tree(played.observation_NO, action_N, depth)
    return {"fidelity": measure_fidelity(tree, played.observation_NO, action_N), "rules": tree.describe()}


def measure_fidelity(tree: Tree, observation_NO: np.ndarray, action_N: np.ndarray) -> float:
    """Return the share of observations in which a tree acts as the policy."""
    return float((tree.predict(observation_NO) == action_N).mean())


def explain_reward(played: Played, policy: ControlPolicy, spaces: Spaces, gamma: float) -> JsonObject:
    """Return the values of each part of the reward for the policy: which of them its choices are good for.

    They are those of a model that counts the steps (Juozapaitis et al. 2019 decompose values like this); what was never
    seen is worth 0. `gap` is the largest distance of their sum from the values of the whole reward, which linearity
    makes 0.
    """
    state_NO, place_N = np.unique(np.concatenate([played.observation_NO, played.next_NO]), axis=0, return_inverse=True)
    place_N = place_N.reshape(-1)
    before_N, after_N = np.split(place_N, 2)
    acts_S = policy.act(state_NO, explore=False)
    parts_NC = np.concatenate([played.reward_NK, played.total_N[:, None]], 1)
    value_SAC = evaluate_parts(before_N, played.action_N, parts_NC, after_N, played.terminated_N, acts_S, spaces, gamma)
    sum_SA, whole_SA = value_SAC[..., :-1].sum(-1), value_SAC[..., -1]
    first = value_SAC[before_N[0], int(acts_S[before_N[0]])]
    return {
        "gap": float(np.abs(sum_SA - whole_SA).max()),
        **{f"part_{number}": float(value) for number, value in enumerate(first[:-1])},
        "whole": float(first[-1]),
    }


def evaluate_parts(
    before_N: np.ndarray,
    action_N: np.ndarray,
    parts_NC: np.ndarray,
    after_N: np.ndarray,
    terminated_N: np.ndarray,
    acts_S: np.ndarray,
    spaces: Spaces,
    gamma: float,
) -> np.ndarray:
    """Return the values (S, A, C) of a deterministic policy for each column of rewards, each solved by itself."""
    states, actions, columns = len(acts_S), spaces.actions, parts_NC.shape[1]
    pair_N = before_N * actions + action_N
    visits_P = np.bincount(pair_N, minlength=states * actions)
    seen_P = np.maximum(visits_P, 1)
    next_PP = np.zeros((states * actions, states * actions))
    goes_on_N = ~terminated_N.astype(bool)
    np.add.at(next_PP, (pair_N[goes_on_N], after_N[goes_on_N] * actions + acts_S[after_N[goes_on_N]]), 1.0)
    system_PP = np.eye(states * actions) - gamma * next_PP / seen_P[:, None]
    values = []
    for column in range(columns):
        reward_P = np.bincount(pair_N, parts_NC[:, column], minlength=states * actions) / seen_P
        values.append(np.linalg.solve(system_PP, reward_P))
    return np.stack(values, -1).reshape(states, actions, columns)


def explain_state(played: Played, policy: ControlPolicy, spaces: Spaces) -> JsonObject:
    """Return how much the value or the logit of the chosen action changes with every number of the observation."""
    saliency_O = measure_saliency(policy.actor, played.observation_NO)
    return {"saliency": saliency_O.tolist(), "most": int(saliency_O.argmax()), "least": int(saliency_O.argmin())}


def measure_saliency(actor: Any, observation_NO: np.ndarray) -> np.ndarray:
    """Return the mean absolute gradient (O,) of the highest score of an actor. Raise StepError if it has no scores."""
    from tensordict import TensorDict

    seen = torch.from_numpy(np.asarray(observation_NO, np.float32)).requires_grad_()
    batch = actor(TensorDict({"observation": seen}, [len(seen)]))
    name = next((key for key in ("action_value", "logits") if key in batch.keys()), None)  # noqa: SIM118
    if name is None:
        raise StepError("explain: state needs a policy with choices, whose scores have gradients")
    (gradient_NO,) = torch.autograd.grad(batch[name].max(-1).values.sum(), seen)
    return gradient_NO.abs().mean(0).numpy()


def explain_task(played: Played, policy: ControlPolicy, spaces: Spaces) -> JsonObject:
    """Return the sub-tasks of successful episodes: observations that all of them pass, in their order.

    An episode is a success if it terminated with a step that earned something. The first and the last are no sub-task.
    """
    episodes = [np.flatnonzero(played.episode_N == number) for number in range(int(played.episode_N.max()) + 1)]
    good = [steps for steps in episodes if played.terminated_N[steps[-1]] and played.total_N[steps[-1]] > 0]
    if not good:
        return {"successes": 0, "landmarks": []}
    paths = [[tuple(row) for row in played.observation_NO[steps].tolist()] for steps in good]
    shared = set(paths[0]).intersection(*paths[1:]) - {path[0] for path in paths}
    return {"successes": len(good), "landmarks": [list(row) for row in dict.fromkeys(paths[0]) if row in shared]}


EXPLAINERS: dict[Explained, Callable[..., JsonObject]] = {
    "model": explain_model,
    "reward": explain_reward,
    "state": explain_state,
    "task": explain_task,
}
"""What explains each class."""
assert set(EXPLAINERS) == set(get_args(Explained))


def explain(
    context: Any,
    *,
    world: WorldFunction,
    explained: Explained,
    episodes: Count = 20,
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.2,
    depth: Count = 4,
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.95,
    expert: ActingFunction | None = None,
) -> dict[str, float]:
    """Write an explanation of the input `policy`, a policy with choices; with `expert` human knowledge is used, too.

    Metrics are its numbers, and with an expert the share of steps in which both act alike.
    """
    policy = load_control_policy(context.input("policy"))
    if not policy.spaces.is_discrete:
        raise StepError(f"explain: it needs choices; {policy.spaces.describe()}")
    played = play_episodes(world, policy, episodes, context.seed, epsilon)
    options = {"model": {"depth": depth}, "reward": {"gamma": gamma}}.get(explained, {})
    found = EXPLAINERS[explained](played, policy, policy.spaces, **options)
    if expert is not None:
        rng = np.random.default_rng([context.seed, 6])
        told_N = expert(observation_NO=played.observation_NO, spaces=policy.spaces, rng=rng)
        found["agreement"] = float((told_N == policy.act(played.observation_NO, explore=False)).mean())
    (context.output("result") / FILE).write_text(json.dumps({"explained": explained, **found}, indent=1) + "\n")
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
