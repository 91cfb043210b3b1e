"""Worlds: environments of Gymnasium that a control policy acts in, several at a time, with states that can be restored.

Shapes: N worlds, O numbers of an observation, A numbers of an action.
"""

import importlib.util
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from learning.control.stepping.episode_tasks import EpisodeTasks
from learning.control.stepping.spaces import Spaces, read_spaces
from schemas.base import JsonObject
from schemas.errors import StepError

Make = Callable[[], Any]
"""Returns a new environment of Gymnasium."""
INSTALL = "pip install 'posttrain[control]'"


def require_libraries() -> None:
    """Raise StepError if a library of the extra `control` is missing."""
    for name in ("gymnasium", "torchrl"):
        if importlib.util.find_spec(name) is None:
            raise StepError(f"kind control needs the package {name}: {INSTALL}")


def gymnasium(*, id: str, kwargs: dict[str, Any] = {}) -> Any:  # noqa: B006 — a recipe needs the default to be readable
    """Return an environment that Gymnasium knows by its id: `Pendulum-v1`, or `package:Id-v0` of an installed package.

    Raise StepError if Gymnasium or the environment is missing. (Towers et al. 2024.)
    """
    try:
        import gymnasium as library
    except ImportError as error:
        raise StepError(f"env gymnasium: {error}: {INSTALL}") from error
    module = id.partition(":")[0] if ":" in id else ""
    if module and not _is_installed(module):
        raise StepError(
            f"env {id}: {module} is a module of yours, whose changes an id cannot show; name a function that returns "
            f"the environment instead: `env: {module}:make_world`"
        )
    try:
        return library.make(id, **kwargs)
    except (library.error.Error, ImportError, TypeError, ValueError) as error:
        raise StepError(f"env gymnasium: {id} cannot be made: {type(error).__name__}: {error}") from error


def _is_installed(module: str) -> bool:
    """Return whether a module belongs to an installed package, or does not exist at all."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return True
    origin = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    return origin is None or any(folder in Path(origin).resolve().parents for folder in folders)


@dataclass(frozen=True)
class Steps:
    """One step of every world; observations are (N, O), the rest (N,); actions of a box or a team are (N, A)."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: tuple[tuple[int, float, int], ...]
    """World, return and length of every episode that ended."""


class Worlds:
    """Several worlds of one kind; an episode that ends is followed by the next one.

    Every episode starts from a seed of its own, derived from the seed, the world's number and the episode's. What a
    world has done since then is kept, so that it can be brought into the same state again by the same actions.
    """

    def __init__(
        self,
        make: Make,
        count: int,
        seed: int,
        purpose: str,
        episode_tasks: EpisodeTasks | None = None,
        *,
        first: int = 0,
    ) -> None:
        """Start the first episode of each of `count` worlds. Raise StepError if their spaces cannot be used.

        Stages have the same seed; those with different purposes get different episodes. `episode_tasks` chooses the
        tasks of episodes. `first` is the number of the first world, where others hold those before it.
        """
        self.first = first
        self.seed = [seed, crc32(purpose.encode())]
        from learning.control.stepping.teams import join_agents  # imports Gymnasium

        self.worlds = [join_agents(make()) for _ in range(count)]
        self.spaces: Spaces = read_spaces(self.worlds[0])
        self.episode_tasks = episode_tasks
        if episode_tasks is not None:
            episode_tasks.begin(self.worlds[0])
        self.tasks = [self._choose_task() for _ in range(count)]
        self.episodes = [0] * count
        self.actions: list[list[np.ndarray]] = [[] for _ in range(count)]
        self.returns = [0.0] * count
        self.observation = np.stack([self._reset(n) for n in range(count)])

    def _choose_task(self) -> np.ndarray | None:
        """Return the task of the next episode; None where the world has none, or draws it."""
        return None if self.episode_tasks is None else self.episode_tasks.choose()

    def _reset(self, n: int) -> np.ndarray:
        """Start the world's episode, with its task, and return its first observation (O,)."""
        sequence = np.random.SeedSequence([*self.seed, self.first + n, self.episodes[n]])
        options = None if self.tasks[n] is None else {"task": self.tasks[n]}
        observation, _ = self.worlds[n].reset(seed=int(sequence.generate_state(1, np.uint32)[0]), options=options)
        self.actions[n], self.returns[n] = [], 0.0
        return self.spaces.flatten(self.worlds[n], observation)

    def step(self, action: np.ndarray) -> Steps:
        """Act in every world and return what happened. Raise StepError if a reward or observation is not finite."""
        before, after = self.observation, np.empty_like(self.observation)
        following = np.empty_like(self.observation)
        count = len(self.worlds)
        reward, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        ended = []
        for n, world in enumerate(self.worlds):
            taken = self.spaces.to_world(action[n])
            observation, earned, terminated[n], truncated[n], _ = world.step(taken)
            after[n] = following[n] = self.spaces.flatten(world, observation)
            reward[n] = earned
            if not (np.isfinite(reward[n]) and np.isfinite(after[n]).all()):
                raise StepError(f"env: reward {earned} or observation {observation} after action {taken} is not finite")
            self.actions[n].append(np.array(action[n]))
            self.returns[n] += float(earned)
            if terminated[n] or truncated[n]:
                ended.append((self.first + n, self.returns[n], len(self.actions[n])))
                if self.episode_tasks is not None and (task := self.tasks[n]) is not None:
                    self.episode_tasks.note(task, self.returns[n])
                self.episodes[n] += 1
                self.tasks[n] = self._choose_task()
                following[n] = self._reset(n)
        self.observation = following
        return Steps(before, np.array(action), reward, after, terminated, truncated, tuple(ended))

    def save(self) -> tuple[dict[str, torch.Tensor], JsonObject]:
        """Return what `restore` needs: tensors by name, and a JSON object."""
        tensors = {f"actions.{n}": torch.from_numpy(np.stack(taken)) for n, taken in enumerate(self.actions) if taken}
        tensors["observation"] = torch.from_numpy(self.observation.copy())
        state: JsonObject = {"episodes": list(self.episodes)}
        if self.episode_tasks is not None:
            chosen, rest = self.episode_tasks.save()
            tensors |= {f"chosen.{name}": tensor for name, tensor in chosen.items()}
            tensors |= {f"task.{n}": torch.from_numpy(task) for n, task in enumerate(self.tasks) if task is not None}
            state |= rest
        return tensors, state

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Bring every world into a saved state. Raise StepError if the same actions lead to another observation."""
        if self.episode_tasks is not None:
            chosen = {name.removeprefix("chosen."): t for name, t in tensors.items() if name.startswith("chosen.")}
            self.episode_tasks.restore(chosen, state)
        for n, episode in enumerate(state["episodes"]):
            self.episodes[n] = episode
            self.tasks[n] = tensors[f"task.{n}"].numpy() if f"task.{n}" in tensors else None
            observation = self._reset(n)
            for action in tensors[f"actions.{n}"].numpy() if f"actions.{n}" in tensors else ():
                shown, earned, *_ = self.worlds[n].step(self.spaces.to_world(action))
                observation = self.spaces.flatten(self.worlds[n], shown)
                self.actions[n].append(np.array(action))
                self.returns[n] += float(earned)
            self.observation[n] = observation
        if not np.array_equal(self.observation, tensors["observation"].numpy()):
            raise StepError(
                "env: the same seed and actions lead to another observation, so that an interrupted step cannot be "
                "continued; run it with --fresh, or draw all random numbers from `self.np_random`"
            )

    def close(self) -> None:
        """Close every world."""
        for world in self.worlds:
            world.close()
