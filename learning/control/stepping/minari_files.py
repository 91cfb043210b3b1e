"""Data sets of Minari (Farama Foundation): a folder with `metadata.json` and episodes in HDF5 or Arrow."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from learning.control.stepping.recorded_episodes import Episode
from learning.control.stepping.spaces import Spaces, read_spaces
from learning.control.stepping.transitions import Transitions
from schemas.errors import StepError

METADATA = "metadata.json"
MISSING = "pip install 'posttrain[control]'"


def find_minari(folder: Path) -> Path | None:
    """Return the folder with a data set's metadata: the folder itself, or its folder `data`; None without one."""
    return next((place for place in (folder, folder / "data") if (place / METADATA).is_file()), None)


def read_minari(folder: Path, world: Any, spaces: Spaces) -> Iterator[Episode]:
    """Yield the episodes of a data set. Raise StepError if it cannot be read, or has other spaces than the env."""
    storage = _open(folder)
    flat = _require_spaces(storage, world, spaces)
    for number in range(storage.total_episodes):
        (read,) = storage.get_episodes([number])
        steps = len(read["rewards"])
        seen = _unstack(read["observations"], steps + 1)
        observation = np.stack(seen).astype(np.float32) if flat else np.stack([spaces.flatten(world, o) for o in seen])
        action = np.asarray(read["actions"]).reshape(steps, -1)
        ended = (np.asarray(read[name], dtype=bool) for name in ("terminations", "truncations"))
        yield Episode(
            f"episode {number}",
            observation[:-1],
            action[:, 0].astype(np.int64) - spaces.start if spaces.is_discrete else action.astype(np.float32),
            np.asarray(read["rewards"], dtype=np.float64),
            observation[1:],
            *ended,
        )


def _require_spaces(storage: Any, world: Any, spaces: Spaces) -> bool:
    """Return whether observations are flat already, as `write_minari` writes them. Raise StepError for other spaces.

    Bounds of observations may differ, since libraries state them differently; those of actions may not.
    """
    from gymnasium.spaces import Box

    seen, ours = storage.observation_space, world.observation_space
    flat = isinstance(seen, Box) and seen.shape == (spaces.observations,)
    if not flat and seen != ours and not (isinstance(seen, Box) and isinstance(ours, Box) and seen.shape == ours.shape):
        raise StepError(f"dataset: its observations are {seen}, and those of the env are {ours}")
    world_of_file = SimpleNamespace(observation_space=ours, action_space=storage.action_space)
    spaces.require(read_spaces(world_of_file), "dataset")
    return flat


def _open(folder: Path) -> Any:
    try:
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise StepError(f"dataset: {error}: {MISSING}") from error
    try:
        metadata = MinariStorage.read_raw_metadata(folder)
        if not {"observation_space", "action_space"} <= metadata.keys():
            # Minari would make the environment that the file names, which imports what the file says.
            raise StepError(f"dataset: {folder.name}/{METADATA} has no `observation_space` and `action_space`")
        return MinariStorage.read(folder)
    except StepError:
        raise
    except Exception as error:  # the library follows whatever the files say, and raises whatever comes of it
        raise StepError(f"dataset: no readable data set of Minari: {type(error).__name__}: {error}") from error


def _unstack(values: Any, count: int) -> list[Any]:
    """Return what was observed at each time, from the arrays of a dictionary's or tuple's members."""
    if isinstance(values, dict):
        members = {name: _unstack(member, count) for name, member in values.items()}
        return [{name: member[at] for name, member in members.items()} for at in range(count)]
    if isinstance(values, tuple):
        columns = [_unstack(member, count) for member in values]
        return [tuple(column[at] for column in columns) for at in range(count)]
    if len(values) != count:
        raise StepError(f"dataset: an episode of {count - 1} steps has {len(values)} observations, not {count}")
    return list(values)


def write_minari(transitions: Transitions, folder: Path, name: str, data_format: str) -> int:
    """Write transitions as a data set of Minari in `folder/data`, in `hdf5` or `arrow`; return its number of episodes.

    Observations are flat, as a policy reads them. Raise StepError for teams, and for episodes whose next observation is
    not that of the following step: Minari stores each observation once.
    """
    try:
        import minari
        from gymnasium.spaces import Box, Discrete
        from minari.data_collector.episode_buffer import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise StepError(f"export: {error}: {MISSING}") from error
    spaces = transitions.spaces
    if spaces.agents > 1:
        raise StepError("export: Minari has no data sets of teams")
    actions = (
        Discrete(spaces.actions, start=spaces.start)
        if spaces.is_discrete
        else Box(_shape(spaces.low, spaces), _shape(spaces.high, spaces), dtype=np.float32)
    )
    observations = Box(-np.inf, np.inf, (spaces.observations,), np.float32)
    buffers = [_make_buffer(EpisodeBuffer, transitions, at) for at in _split(transitions)]
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(folder / "data", observations, actions, data_format=data_format)
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    storage.update_episodes(buffers)
    return len(buffers)


def _shape(bounds: tuple[float, ...], spaces: Spaces) -> Any:
    return np.array(bounds, dtype=np.float32).reshape(spaces.shape)


def _split(transitions: Transitions) -> list[slice]:
    starts = np.flatnonzero(np.diff(transitions.episode, prepend=transitions.episode[0] - 1))
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(transitions)], strict=True)]


def _make_buffer(buffer: Any, transitions: Transitions, at: slice) -> Any:
    seen, after = transitions.observation[at], transitions.next_observation[at]
    if not np.array_equal(seen[1:], after[:-1]):
        raise StepError(
            f"export: in episode {transitions.episode[at.start]} a step does not begin where the last ended"
        )
    action, spaces = transitions.action[at], transitions.spaces
    return buffer(
        observations=np.concatenate([seen, after[-1:]]).astype(np.float32),
        actions=action + spaces.start if spaces.is_discrete else action.reshape(-1, *spaces.shape).astype(np.float32),
        rewards=transitions.reward[at],
        terminations=transitions.terminated[at],
        truncations=transitions.truncated[at],
        infos={},
    )
