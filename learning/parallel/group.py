"""Processes that do one step together: each runs the same task on its share, and rank 0 alone tells and writes.

Everything that decides is equal on all ranks; what ranks compute apart is summed, never averaged, because weights and
denominators come from the whole global batch. `ALONE` is a process by itself: the same calls, no communication.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed

Part = TypeVar("Part")
Found = TypeVar("Found")
Each = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
"""(parts, function) → what the function finds for every part."""


@dataclass(frozen=True)
class Group:
    """One process as a member of its group; `device` is where its model lives."""

    rank: int = 0
    size: int = 1
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    device: str = "cpu"

    @property
    def main(self) -> bool:
        """Whether this is the rank that tells and writes."""
        return self.rank == 0

    @property
    def shards(self) -> bool:
        """Whether each rank holds a part of what is trained only."""
        return self.size > 1 and self.strategy == "fsdp2"

    def share(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that this rank does: every `size`-th, from its rank on."""
        return list(parts[self.rank :: self.size])

    def rounds(self, parts: Sequence[Part]) -> list[tuple[Part, bool]]:
        """This rank's parts, as many as any rank has: one without so many repeats the first part, marked False.

        Ranks that compute together must all take part in every round.
        """
        mine = [(part, True) for part in self.share(parts)]
        count = -(-len(parts) // self.size)
        return mine + [(parts[0], False)] * (count - len(mine))

    def fair(self, limit: int, total: int, longest: int) -> int:
        """The most tokens of a forward pass: `limit`, or so many fewer that no rank is left without one.

        Passes are filled one after the other; each but the last then has more than total / size.
        """
        return limit if self.size == 1 else min(limit, -(-total // self.size) + longest)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place; every rank has the same bits afterwards."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """Sums of numbers over the ranks."""
        if self.size == 1:
            return list(numbers)
        return self.sum_(torch.tensor(list(numbers), dtype=torch.float64)).tolist()

    def broadcast(self, value: Any) -> Any:
        """What rank 0 has."""
        if self.size == 1:
            return value
        box = [value if self.main else None]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """What every rank has, by rank, on all ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            distributed.barrier()

    def each(self, parts: Sequence[Part], function: Callable[[Part], Found]) -> list[Found]:
        """What a function finds for every part, in order and on every rank; each rank does its share."""
        if self.size == 1:
            return [function(part) for part in parts]
        done = [(function(part), real) for part, real in self.rounds(parts)]
        return self.together([found for found, real in done if real])

    def together(self, mine: Sequence[Found]) -> list[Found]:
        """What every rank found for its share, in the order of the parts, on every rank."""
        by_rank = self.gather(list(mine))
        return [by_rank[i % self.size][i // self.size] for i in range(sum(map(len, by_rank)))]


ALONE = Group()


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which each rank holds a part, on every rank; others as they are."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full = tensor.full_tensor()
    return full.wait() if hasattr(full, "wait") else full
