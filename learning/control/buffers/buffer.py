"""The steps that a loss is trained on: a ring of the newest ones. C: capacity."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import Transitions
from learning.control.stepping.worlds import Steps


class Buffer:
    """Steps in columns of C rows, of which the oldest is replaced when all are used."""

    def __init__(self, capacity: int, spaces: Spaces) -> None:
        if spaces.is_discrete:
            action = torch.zeros((capacity, spaces.agents) if spaces.agents > 1 else capacity, dtype=torch.int64)
        else:
            action = torch.zeros(capacity, spaces.actions)
        self.columns: dict[str, Tensor] = {
            "observation": torch.zeros(capacity, spaces.observations),
            "action": action,
            "reward": torch.zeros(capacity, 1),
            "next_observation": torch.zeros(capacity, spaces.observations),
            "terminated": torch.zeros(capacity, 1, dtype=torch.bool),
            "truncated": torch.zeros(capacity, 1, dtype=torch.bool),
        }
        self.capacity, self.added = capacity, 0

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, steps: Steps | Transitions) -> None:
        """Add steps, the first of them first."""
        count = len(steps.reward)
        kept = slice(max(0, count - self.capacity), count)
        place = torch.arange(self.added, self.added + count)[kept] % self.capacity
        for name, column in self.columns.items():
            values = torch.from_numpy(np.array(getattr(steps, name)[kept]))
            column[place] = values.to(column.dtype).reshape(len(values), *column.shape[1:])
        self.added += count

    def get_steps(self) -> Steps:
        """Return a copy of all kept steps, as if each were that of another world."""
        kept = {name: column.numpy().copy() for name, column in self.save().items()}
        one = {name: kept[name][:, 0] for name in ("reward", "terminated", "truncated")}
        return Steps(**(kept | one), ended=())

    def replace(self, steps: Steps) -> None:
        """Take actions and rewards of all kept steps, in the order of `get_steps`."""
        for name in ("action", "reward"):
            column = self.columns[name][: len(self)]
            column[:] = torch.from_numpy(np.array(getattr(steps, name))).to(column.dtype).reshape(column.shape)

    def make_batch(self, place_B: Tensor) -> Any:
        """Return the steps at some places as the TensorDict that TorchRL's losses read."""
        return make_batch({name: column[place_B] for name, column in self.columns.items()})

    def save(self) -> dict[str, Tensor]:
        """Return the used rows of all columns."""
        return {name: column[: len(self)] for name, column in self.columns.items()}

    def restore(self, tensors: Mapping[str, Tensor], added: int) -> None:
        """Fill the ring with what `save` returned after `added` steps."""
        self.added = added
        for name, column in self.columns.items():
            column[: len(self)] = tensors[name]


def fill_buffer(parts: Sequence[Transitions]) -> Buffer | None:
    """Return a buffer with all given transitions; None if there are none."""
    if not parts:
        return None
    buffer = Buffer(sum(len(part) for part in parts), parts[0].spaces)
    for part in parts:
        buffer.add(part)
    return buffer


def make_batch(columns: Mapping[str, Tensor]) -> Any:
    """Return columns of B steps, those of a buffer, as the TensorDict that TorchRL's losses read."""
    from tensordict import TensorDict

    following = {
        "observation": columns["next_observation"],
        "reward": columns["reward"],
        "terminated": columns["terminated"],
        "done": columns["terminated"] | columns["truncated"],
    }
    shape = columns["reward"].shape[:-1]
    return TensorDict(
        {"observation": columns["observation"], "action": columns["action"], "next": TensorDict(following, shape)},
        shape,
    )
