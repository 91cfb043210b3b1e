"""Safe sets: a network that predicts whether an action leads into a violation, and actions that it lets pass.

A violation is a step that ends its episode (`terminated`). T steps of data, N worlds, O and A numbers, K candidates.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import nn

from learning.control.policies.policy import load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import Transitions, join_transitions, read_transitions
from schemas.errors import StepError
from schemas.references import ControlPolicyRef, DirectoryRef

CONFIG, WEIGHTS = "safe_set.json", "safe_set.safetensors"
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def label_safety(given: Transitions, horizon: int) -> np.ndarray:
    """Return of every step (T,) whether its episode has no violation within `horizon` steps, itself the first."""
    safe_T = np.ones(len(given), bool)
    for place in np.flatnonzero(given.terminated):
        first = max(place - horizon + 1, int(np.searchsorted(given.episode, given.episode[place])))
        safe_T[first : place + 1] = False
    return safe_T


def choose_rows(
    given: Transitions, safe_T: np.ndarray, forget: Literal["none", "optimistic"], near: float
) -> np.ndarray:
    """Return which rows (T,) are fitted. `optimistic` forgets warnings that newer steps contradict.

    A warning is an unsafe row that is not the violation itself; a safe row of a later episode contradicts it, if its
    observation and action are nearer than `near`.
    """
    kept_T = np.ones(len(given), bool)
    if forget == "none":
        return kept_T
    point_TD = np.concatenate([given.observation, given.action], 1)
    for place in np.flatnonzero(~safe_T & ~given.terminated):
        newer_T = safe_T & (given.episode > given.episode[place])
        kept_T[place] = not (np.linalg.norm(point_TD[newer_T] - point_TD[place], axis=1) < near).any()
    return kept_T


def make_network(inputs: int, hidden: int) -> nn.Sequential:
    """Return a network from an observation with an action to the logit that it is safe."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
    )


def fit_safe_set(
    context: Any,
    *,
    horizon: Count = 2,
    forget: Literal["none", "optimistic"] = "none",
    near: Annotated[float, Field(gt=0)] = 0.3,
    hidden: Count = 64,
    steps: Count = 600,
) -> dict[str, float]:
    """Fit a safe set to all inputs, the oldest first, and write it; unsafe rows weigh as much as safe ones together.

    Raise StepError for choices, and for data without any violation or without anything else.
    """
    parts = [read_transitions(folder) for name, folder in context.inputs.items() if not name.startswith("inputs.")]
    given = join_transitions(parts)
    if given.spaces.is_discrete:
        raise StepError("safe set: actions must be numbers")
    safe_T = label_safety(given, horizon)
    kept_T = choose_rows(given, safe_T, forget, near)
    label_T = torch.from_numpy(safe_T[kept_T]).float()
    if not 0 < float(label_T.mean()) < 1:
        raise StepError("safe set: the data need steps into violations and steps elsewhere")
    torch.manual_seed(context.seed)
    point_TD = torch.from_numpy(np.concatenate([given.observation, given.action], 1)[kept_T].astype(np.float32))
    network = make_network(point_TD.shape[1], hidden)
    weight_T = torch.where(label_T > 0, 0.5 / label_T.sum(), 0.5 / (1 - label_T).sum())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        loss_T = nn.functional.binary_cross_entropy_with_logits(network(point_TD)[:, 0], label_T, reduction="none")
        optimizer.zero_grad()
        (weight_T * loss_T).sum().backward()
        optimizer.step()
    with torch.no_grad():
        right = ((network(point_TD)[:, 0] > 0) == (label_T > 0)).float().mean()
    folder = context.output("result")
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"inputs": point_TD.shape[1], "hidden": hidden}) + "\n")
    counts = {"rows": int(kept_T.sum()), "forgotten": int((~kept_T).sum()), "unsafe": int((label_T == 0).sum())}
    return {**counts, "accuracy": float(right)}


@lru_cache(maxsize=4)
def load_safe_set(folder: Path) -> nn.Sequential:
    """Return the safe set in a folder. Raise StepError if there is none."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        network = make_network(config["inputs"], config["hidden"])
        network.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise StepError(f"safe_set: {folder.name} has none of `fit_safe_set`: {type(error).__name__}") from error
    return network


def predict_safety(network: nn.Module, observation_NO: np.ndarray, action_NA: np.ndarray) -> np.ndarray:
    """Return the predicted probabilities (N,) that actions are safe."""
    point_ND = torch.from_numpy(np.concatenate([observation_NO, action_NA], 1).astype(np.float32))
    with torch.no_grad():
        return torch.sigmoid(network(point_ND)[:, 0]).numpy()


def replace_unsafe(
    network: nn.Module,
    observation_NO: np.ndarray,
    action_NA: np.ndarray,
    spaces: Spaces,
    rng: np.random.Generator,
    *,
    threshold: float,
    candidates: int,
) -> np.ndarray:
    """Return actions of which those below the threshold are replaced by the safest of some that are drawn."""
    passed_N = predict_safety(network, observation_NO, action_NA) >= threshold
    chosen_NA = np.array(action_NA)
    for n in np.flatnonzero(~passed_N):
        drawn_KA = rng.uniform(spaces.low, spaces.high, (candidates, spaces.actions)).astype(np.float32)
        safety_K = predict_safety(network, np.repeat(observation_NO[n : n + 1], candidates, 0), drawn_KA)
        chosen_NA[n] = drawn_KA[int(safety_K.argmax())]
    return chosen_NA


def stay_safe(
    action_N: np.ndarray,
    observation_NO: np.ndarray,
    spaces: Spaces,
    rng: np.random.Generator,
    *,
    safe_set: DirectoryRef,
    threshold: Share = 0.5,
    candidates: Count = 32,
) -> np.ndarray:
    """Let actions pass that a safe set predicts to be safe; replace others by the safest of `candidates` drawn ones."""
    network = load_safe_set(Path(safe_set))
    how = {"threshold": threshold, "candidates": candidates}
    return replace_unsafe(network, observation_NO, action_N, spaces, rng, **how)


def act_safely(
    observation_NO: np.ndarray,
    spaces: Spaces,
    rng: np.random.Generator,
    *,
    policy: ControlPolicyRef,
    safe_set: DirectoryRef,
    threshold: Share = 0.5,
    candidates: Count = 32,
) -> np.ndarray:
    """Act as a trained policy does without exploration, where a safe set lets it."""
    action_NA = _load_policy(Path(policy)).act(observation_NO, explore=False)
    network = load_safe_set(Path(safe_set))
    how = {"threshold": threshold, "candidates": candidates}
    return replace_unsafe(network, observation_NO, action_NA, spaces, rng, **how)


@lru_cache(maxsize=4)
def _load_policy(folder: Path) -> Any:
    return load_control_policy(folder)


def reward_diversity(
    next_observation_NO: np.ndarray, kept_KO: np.ndarray, *, nearest: Count = 5
) -> dict[str, np.ndarray]:
    """Replace rewards by log(1 + mean distance to the nearest kept observations); none of the world is read.

    Steps among the kept ones find themselves at distance 0, which only counts as one of the nearest.
    """
    rewards = [_measure_novelty(one, kept_KO, nearest) for one in next_observation_NO]
    return {"reward": np.array(rewards, float)}


def _measure_novelty(observation: np.ndarray, kept_KO: np.ndarray, nearest: int) -> float:
    """Return how far an observation is from the kept ones."""
    if len(kept_KO) < nearest:
        return 1.0
    away_K = np.linalg.norm(kept_KO - observation, axis=1)
    return float(np.log1p(np.partition(away_K, nearest - 1)[:nearest].mean()))
