"""Transitions: what happened in a world, one row per step, in an Arrow file that is read without copies.

Columns: `episode`, `step`, `observation` (O floats), `action` (A floats, the number of a choice, or one of each agent),
`reward`, `next_observation`, `terminated`, `truncated`. The file's metadata holds the spaces. An episode's rows are
consecutive; `truncated` is also true at the last row of an episode that the collection cut off.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Steps
from schemas.errors import StepError

FILE = "transitions.arrow"
SPACES = b"spaces"
COLUMNS = ("step", "observation", "action", "reward", "next_observation", "terminated", "truncated")
"""Columns beside `episode`."""


@dataclass(frozen=True)
class Transitions:
    """Steps in the order of their episodes; T steps."""

    spaces: Spaces
    episode: np.ndarray
    step: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)

    def compute_returns(self) -> np.ndarray:
        """Return the sum of rewards of every episode."""
        _, place_T = np.unique(self.episode, return_inverse=True)
        return np.bincount(place_T, weights=self.reward)


def gather_episodes(collected: Sequence[Steps], spaces: Spaces, shares: Sequence[int] | None = None) -> Transitions:
    """Return the steps of several worlds, one episode after the other, world by world.

    With `shares` only that number of whole episodes of each world is kept.
    """
    rows: list[tuple[Steps, int]] = []
    episode: list[int] = []
    number: list[int] = []
    following = 0
    for n in range(len(collected[0].reward)):
        first, at = following, 0
        for steps in collected:
            if shares is not None and following - first == shares[n]:
                break
            rows.append((steps, n))
            episode.append(following)
            number.append(at)
            at += 1
            if steps.terminated[n] or steps.truncated[n]:
                following, at = following + 1, 0
        following += at > 0
    terminated = np.array([steps.terminated[n] for steps, n in rows])
    is_last = np.append(np.diff(episode) != 0, True)
    return Transitions(
        spaces,
        np.array(episode),
        np.array(number),
        np.stack([steps.observation[n] for steps, n in rows]),
        np.stack([steps.action[n] for steps, n in rows]),
        np.array([steps.reward[n] for steps, n in rows]),
        np.stack([steps.next_observation[n] for steps, n in rows]),
        terminated,
        np.array([steps.truncated[n] for steps, n in rows]) | (is_last & ~terminated),
    )


def join_transitions(parts: Sequence[Transitions]) -> Transitions:
    """Return the steps of all parts, whose episodes are numbered on."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    before = np.cumsum([0, *(int(part.episode.max()) + 1 for part in parts)])
    episode = np.concatenate([part.episode + first for part, first in zip(parts, before, strict=False)])
    return Transitions(spaces=parts[0].spaces, episode=episode, **columns)


def select_episodes(transitions: Transitions, numbers: np.ndarray) -> Transitions:
    """Return the steps of some episodes, in the same order and with the same numbers."""
    chosen_T = np.isin(transitions.episode, numbers)
    columns = {name: getattr(transitions, name)[chosen_T] for name in ("episode", *COLUMNS)}
    return Transitions(spaces=transitions.spaces, **columns)


def write_transitions(folder: Path, transitions: Transitions) -> None:
    """Write the transitions into a folder."""
    t = transitions
    observations = pa.list_(pa.float32(), t.spaces.observations)
    one = pa.int64() if t.spaces.is_discrete else pa.float32()
    actions = pa.list_(one, size) if (size := _count_actions(t.spaces)) else one
    columns = {
        "episode": pa.array(t.episode, pa.int64()),
        "step": pa.array(t.step, pa.int32()),
        "observation": _fixed(t.observation, observations),
        "action": _fixed(t.action, actions) if size else pa.array(t.action, actions),
        "reward": pa.array(t.reward, pa.float64()),
        "next_observation": _fixed(t.next_observation, observations),
        "terminated": pa.array(t.terminated, pa.bool_()),
        "truncated": pa.array(t.truncated, pa.bool_()),
    }
    table = pa.table(columns).replace_schema_metadata({SPACES: json.dumps(t.spaces.dump()).encode()})
    with pa.ipc.new_file(str(folder / FILE), table.schema) as writer:
        writer.write_table(table)


def _count_actions(spaces: Spaces) -> int | None:
    """Return how many numbers or choices an action has; None for a single choice."""
    if not spaces.is_discrete:
        return spaces.actions
    return spaces.agents if spaces.agents > 1 else None


def _fixed(values: np.ndarray, kind: pa.FixedSizeListType) -> pa.Array:
    number = kind.value_type
    flat = pa.array(np.ascontiguousarray(values, dtype=number.to_pandas_dtype()).reshape(-1), number)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def read_transitions(folder: Path) -> Transitions:
    """Return the transitions in a folder. Raise StepError if there are none, or the file is another one."""
    try:
        with pa.memory_map(str(folder / FILE)) as source:
            table = pa.ipc.open_file(source).read_all().combine_chunks()
        spaces = Spaces.load(json.loads(table.schema.metadata[SPACES]))
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        steps = len(table)

        def read(name: str, size: int | None = None) -> np.ndarray:
            values = columns[name] if size is None else columns[name].flatten()
            array = values.to_numpy(zero_copy_only=False)
            return array if size is None else array.reshape(steps, size)

        transitions = Transitions(
            spaces,
            read("episode"),
            read("step"),
            read("observation", spaces.observations),
            read("action", _count_actions(spaces)),
            read("reward"),
            read("next_observation", spaces.observations),
            read("terminated"),
            read("truncated"),
        )
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise StepError(f"transitions: {folder.name}/{FILE} cannot be read: {type(error).__name__}: {error}") from error
    if not len(transitions):
        raise StepError("transitions: the file has no steps")
    return transitions
