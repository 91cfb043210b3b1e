"""Episodes that were recorded elsewhere, as transitions. Shapes: T steps, O numbers of an observation, A of actions."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import COLUMNS, Transitions
from schemas.errors import StepError

RECORDED = COLUMNS[1:]
"""Columns of transitions that a record has; the number of a step follows from them."""
SLACK = 1e-4
"""How far a recorded number may lie outside the bounds of an action: what float32 and text formats round."""


@dataclass(frozen=True)
class Episode:
    """What was recorded of one episode."""

    name: str
    observation: np.ndarray
    """(T, O)."""
    action: np.ndarray
    """(T, A) numbers, or (T,) choices from 0."""
    reward: np.ndarray
    next_observation: np.ndarray
    """(T, O)."""
    terminated: np.ndarray
    truncated: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)


def gather_recorded(
    episodes: Iterable[Episode], spaces: Spaces, *, most_episodes: int | None, most_steps: int | None
) -> Transitions:
    """Return the first episodes as transitions; the last one is cut off at `most_steps`.

    Raise StepError for numbers that are not finite, actions outside the bounds, an episode that goes on after its end,
    and fewer steps or episodes than asked for.
    """
    parts: list[Episode] = []
    steps = 0
    for episode in episodes:
        if len(parts) == most_episodes or (most_steps is not None and steps >= most_steps):
            break
        if not len(episode):
            continue
        check_episode(episode, spaces)
        parts.append(episode if most_steps is None else _cut(episode, most_steps - steps))
        steps += len(parts[-1])
    if not parts or (most_episodes or 0) > len(parts) or (most_steps or 0) > steps:
        asked = f"{most_episodes} `episodes`" if most_episodes else f"{most_steps or 1} `environment_steps`"
        raise StepError(f"dataset: it has {len(parts)} episodes of {steps} steps, and {asked} are asked for")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in RECORDED}
    lengths = [len(part) for part in parts]
    ends = np.cumsum(lengths) - 1
    columns["truncated"][ends] |= ~columns["terminated"][ends]
    number = np.concatenate([np.arange(length) for length in lengths])
    return Transitions(spaces, episode=np.repeat(np.arange(len(parts)), lengths), step=number, **columns)


def _cut(episode: Episode, steps: int) -> Episode:
    return Episode(episode.name, *(getattr(episode, name)[:steps] for name in RECORDED))


def check_episode(episode: Episode, spaces: Spaces) -> None:
    """Raise StepError for an episode that the env could not have had; the message names its first such step."""
    acted = () if spaces.is_discrete else (spaces.actions,)
    observed = (spaces.observations,)
    for name, size in (("observation", observed), ("next_observation", observed), ("action", acted)):
        if (found := getattr(episode, name).shape[1:]) != size:
            raise StepError(f"dataset: {episode.name}: `{name}` has the shape {found}, and that of the env has {size}")
    for name in ("observation", "next_observation", "action", "reward"):
        values = getattr(episode, name)
        _refuse(episode, ~np.isfinite(values.reshape(len(values), -1)).all(1), f"`{name}` is not finite")
    low, high = (0, spaces.actions - 1) if spaces.is_discrete else (np.array(spaces.low), np.array(spaces.high))
    outside = np.asarray((episode.action < low - SLACK) | (episode.action > high + SLACK))
    bounds = f"{low} to {high}" if spaces.is_discrete else f"{list(spaces.low)} to {list(spaces.high)}"
    _refuse(episode, outside.reshape(len(episode), -1).any(1), f"`action` is outside the env's bounds, {bounds}")
    over = episode.terminated[:-1] | episode.truncated[:-1]
    _refuse(episode, np.append(over, False), "the episode has ended, and more of its steps follow")


def _refuse(episode: Episode, bad_T: np.ndarray | np.bool, problem: str) -> None:
    if np.any(bad_T):
        raise StepError(f"dataset: {episode.name}, step {int(np.argmax(bad_T))}: {problem}")
