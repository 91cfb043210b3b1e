"""The tasks of episodes, in worlds that have tasks: what was chosen, and what it returned.

A world with tasks has a box `task_space` and takes the task of an episode as `options["task"]` of its reset. N worlds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch

from learning.lookup import Bound
from schemas.base import JsonObject
from schemas.errors import StepError


@dataclass
class EpisodeTasks:
    """Asks a teacher for the task of every episode, and tells it of the episodes before."""

    teacher: Bound
    seed: int
    tasks: list[np.ndarray] = field(default_factory=list)
    """Tasks of the episodes that ended."""
    returns: list[float] = field(default_factory=list)
    value_of: Callable[[np.ndarray], np.ndarray] | None = None
    """Values of the first observation of episodes with given tasks, where the loss has a critic of observations."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, crc32(b"tasks")])
        self.low = self.high = np.zeros(0)

    def begin(self, world: Any) -> None:
        """Read what tasks a world has. Raise StepError if it has none."""
        space = getattr(getattr(world, "unwrapped", world), "task_space", None)
        if space is None:
            raise StepError("teacher: the env has no tasks: give it a box `task_space`, as parametric_pole has")
        self.low, self.high = space.low.astype(float), space.high.astype(float)

    def choose(self) -> np.ndarray:
        """Return the task of the next episode. Raise StepError for one that the world does not have."""
        supplies: dict[str, Any] = {"low": self.low, "high": self.high, "rng": self.rng}
        supplies |= {"task_KD": np.array(self.tasks).reshape(-1, len(self.low)), "return_K": np.array(self.returns)}
        task = np.asarray(self.teacher.ask(len(self.returns), supplies | {"value_of": self.value_of}), float)
        if task.shape != self.low.shape or not ((task >= self.low) & (task <= self.high)).all():
            raise StepError(
                f"teacher {self.teacher.name}: {task.tolist()} is no task from {self.low.tolist()} to "
                f"{self.high.tolist()}"
            )
        return task

    def note(self, task: np.ndarray, earned: float) -> None:
        """Take note of an episode that ended."""
        self.tasks.append(task)
        self.returns.append(earned)

    def save(self) -> tuple[dict[str, torch.Tensor], JsonObject]:
        """Return what `restore` needs: tensors by name, and a JSON object."""
        done = np.array(self.tasks).reshape(-1, len(self.low))
        tensors = {"tasks": torch.from_numpy(done), "returns": torch.tensor(self.returns, dtype=torch.float64)}
        return tensors, {"tasks": self.rng.bit_generator.state}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take what `save` returned."""
        self.tasks = list(tensors["tasks"].numpy().copy())
        self.returns = tensors["returns"].tolist()
        self.rng.bit_generator.state = state["tasks"]
