"""A small buffer of old tasks' steps, chosen by a learned model of the world, and cloning of two sources at once.

Offline experience replay for tasks in a row (OER, Gai et al. 2023). `kind: python` calls `select_experience`.
Shapes: T steps of a dataset, V visited states, R rollouts of L steps, B steps of a batch, O numbers of an observation.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.buffers.buffer import Buffer
from learning.control.losses.terms import cloning
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.transitions import (
    COLUMNS,
    Transitions,
    join_transitions,
    read_transitions,
    write_transitions,
)
from schemas.errors import StepError
from schemas.references import ControlPolicyRef, TransitionsRef

Count = Annotated[int, Field(ge=1)]
Advance = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns next observations (R, O) from observations and actions."""
Act = Callable[[np.ndarray], np.ndarray]


def visit_states(start_RO: np.ndarray, act: Act, advance: Advance, length: int) -> np.ndarray:
    """Return the states of a policy's rollouts in a model, (L · R, O): first ones, then second ones, …"""
    states = [start_RO]
    for _ in range(length - 1):
        states.append(advance(states[-1], act(states[-1])))
    return np.concatenate(states)


def choose_nearest(visited_VO: np.ndarray, observation_TO: np.ndarray, size: int) -> np.ndarray:
    """Return the places of `size` steps: to visited states, evenly spaced in their order, the nearest unused steps.

    So many steps are taken for the late states of rollouts as for the early ones.
    """
    is_used_T = np.zeros(len(observation_TO), bool)
    places = []
    for place in np.linspace(0, len(visited_VO) - 1, size).round().astype(int):
        away_T = np.linalg.norm(observation_TO - visited_VO[place], axis=1)
        nearest = int(np.where(is_used_T, np.inf, away_T).argmin())
        is_used_T[nearest] = True
        places.append(nearest)
    return np.array(places)


def fit_dynamics(data: Transitions, steps: int, learning_rate: float, hidden_size: int) -> Advance:
    """Return a network's prediction of the next observation, fitted to its change by squared error on all steps."""
    inputs = torch.from_numpy(np.concatenate([data.observation, encode_actions(data, data.action)], 1))
    change = torch.from_numpy(data.next_observation - data.observation)
    model = nn.Sequential(nn.Linear(inputs.shape[1], hidden_size), nn.ReLU(), nn.Linear(hidden_size, change.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - change).square().mean().backward()
        optimizer.step()

    def advance(observation_RO: np.ndarray, action_RA: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            shown = np.concatenate([observation_RO, encode_actions(data, action_RA)], 1)
            return observation_RO + model(torch.from_numpy(shown)).numpy()

    return advance


def encode_actions(data: Transitions, action: np.ndarray) -> np.ndarray:
    """Return actions as a network reads them: numbers, or one-hot choices."""
    return np.eye(data.spaces.actions, dtype=np.float32)[action] if data.spaces.is_discrete else action


def select_experience(
    context: Any,
    *,
    size: Count = 50,
    by: Literal["model", "random"] = "model",
    length: Count | None = None,
    rollouts: Count = 50,
    steps: Count = 500,
    learning_rate: Annotated[float, Field(gt=0)] = 1e-2,
    hidden_size: Count = 64,
) -> dict[str, float]:
    """Write the input `buffer`, if there is one, and `size` steps of all inputs `data…`, as the output `transitions`.

    With `by: model` they are those nearest to the states that the input `policy` visits in a model of the data, which
    is fitted to them; rollouts begin where episodes begin and are as long as the longest. With `random` all are equally
    likely. Return the mean distance of the data, and of the steps taken, from the visited states nearest to them.
    """
    names = sorted(name for name in context.inputs if name.startswith("data"))
    if not names:
        raise StepError("select_experience: give inputs `data`, `data_more`, …, the steps to select from")
    data = join_transitions([read_transitions(context.input(name)) for name in names])
    policy = load_control_policy(context.input("policy"))
    policy.spaces.require(data.spaces, "data")
    if size > len(data):
        raise StepError(f"select_experience: size {size}, and the data have {len(data)} steps")
    torch.manual_seed(context.seed)
    rng = np.random.default_rng(context.seed)
    advance = fit_dynamics(data, steps, learning_rate, hidden_size)
    start_RO = data.observation[data.step == 0]
    start_RO = start_RO[np.arange(rollouts) % len(start_RO)]
    longest = int(data.step.max()) + 1
    visited_VO = visit_states(start_RO, lambda shown: policy.act(shown, explore=False), advance, length or longest)
    chosen = (
        choose_nearest(visited_VO, data.observation, size)
        if by == "model"
        else rng.choice(len(data), size, replace=False)
    )
    taken = take_steps(data, chosen)
    parts = [read_transitions(context.input("buffer")), taken] if "buffer" in context.inputs else [taken]
    write_transitions(context.output("transitions"), join_transitions(parts))
    apart_T = np.full(len(data), np.inf)
    for visited_O in visited_VO:
        apart_T = np.minimum(apart_T, np.linalg.norm(data.observation - visited_O, axis=1))
    kept = sum(len(part) for part in parts)
    return {"steps": kept, "data_distance": float(apart_T.mean()), "distance": float(apart_T[chosen].mean())}


def take_steps(data: Transitions, place_B: np.ndarray) -> Transitions:
    """Return single steps, each as an episode that is cut off behind it."""
    columns = {name: getattr(data, name)[place_B] for name in COLUMNS}
    cut = columns["truncated"] | ~columns["terminated"]
    return replace(
        data, episode=np.arange(len(place_B)), **columns | {"step": np.zeros(len(place_B), int), "truncated": cut}
    )


def cloning_of_policy(batch: Any, actor: Any, *, policy: ControlPolicyRef) -> Tensor:
    """Mean squared distance of the actor's actions from those of a trained policy on the batch (Gai et al. 2023).

    Both must be deterministic, as those of `td3`, `td3_bc` and `bc` with `stochastic: false`.
    """
    teacher = _load_policy(Path(policy))
    if hasattr(actor, "get_dist") or hasattr(teacher, "get_dist"):
        raise StepError(
            "loss_terms: cloning_of_policy needs deterministic policies; use td3_bc, or bc that is not stochastic"
        )
    with torch.no_grad():
        wanted = teacher(batch.select("observation"))["action"]
    return nn.functional.mse_loss(actor(batch.select("observation"))["action"], wanted)


def cloning_of_buffer(actor: Any, *, buffer: TransitionsRef) -> Tensor:
    """Return `cloning` of all steps of a small buffer, beside a loss on other data."""
    kept = _load_buffer(Path(buffer))
    return cloning(kept.make_batch(torch.arange(len(kept))), actor)


@lru_cache(maxsize=4)
def _load_policy(folder: Path) -> Any:
    # A network is drawn at random before its weights are read; a resumed step must go on with the same random numbers.
    with torch.random.fork_rng(devices=[]):
        return load_control_policy(folder).actor.requires_grad_(False)


@lru_cache(maxsize=4)
def _load_buffer(folder: Path) -> Buffer:
    data = read_transitions(folder)
    buffer = Buffer(len(data), data.spaces)
    buffer.add(data)
    return buffer
