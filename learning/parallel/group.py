"""Processes that run one step together: each runs the same task on its share; rank 0 alone reports and writes.

All decisions are equal on all ranks; what ranks compute separately is summed, never averaged, because weights and
denominators come from the global batch. `ALONE` is a single process: the same calls without communication.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed

Part = TypeVar("Part")
Found = TypeVar("Found")
Each = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
"""(parts, function) → the function's result for every part."""


@dataclass(frozen=True)
class Group:
    """One process as a member of its group; `device` is where its model lives."""

    rank: int = 0
    size: int = 1
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    device: str = "cpu"

    @property
    def main(self) -> bool:
        """Whether this is the rank that reports and writes."""
        return self.rank == 0

    @property
    def shards(self) -> bool:
        """Whether each rank holds a part of what is trained only."""
        return self.size > 1 and self.strategy == "fsdp2"

    def share(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts that this rank computes: every `size`-th, from its rank on."""
        return list(parts[self.rank :: self.size])

    def rounds(self, parts: Sequence[Part]) -> list[tuple[Part, bool]]:
        """Return this rank's parts, as many as any rank has: one without so many repeats the first part, marked False.

        Ranks that compute together must all take part in every round.
        """
        mine = [(part, True) for part in self.share(parts)]
        count = -(-len(parts) // self.size)
        return mine + [(parts[0], False)] * (count - len(mine))

    def fair(self, limit: int, total: int, longest: int) -> int:
        """Return the most tokens of a forward pass: `limit`, or so many fewer that no rank is left without one.

        Passes are filled one after the other; each but the last then has more than total / size.
        """
        return limit if self.size == 1 else min(limit, -(-total // self.size) + longest)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place and bit-identical on every rank; return it."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """Return sums of numbers over the ranks."""
        if self.size == 1:
            return list(numbers)
        return self.sum_(torch.tensor(list(numbers), dtype=torch.float64)).tolist()

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0."""
        if self.size == 1:
            return value
        box = [value if self.main else None]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            distributed.barrier()

    def each(self, parts: Sequence[Part], function: Callable[[Part], Found]) -> list[Found]:
        """Return the function's result for every part, in order, on every rank; each rank computes its share."""
        if self.size == 1:
            return [function(part) for part in parts]
        done = [(function(part), real) for part, real in self.rounds(parts)]
        return self.together([result for result, real in done if real])

    def together(self, mine: Sequence[Found]) -> list[Found]:
        """Return the results of all ranks in the order of the parts, on every rank."""
        by_rank = self.gather(list(mine))
        return [by_rank[i % self.size][i // self.size] for i in range(sum(map(len, by_rank)))]


ALONE = Group()


def gather_shards(tensor: Tensor) -> Tensor:
    """Return a sharded tensor whole, on every rank; a plain tensor unchanged."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    sharded: Any = tensor
    full = sharded.full_tensor()
    return full.wait() if hasattr(full, "wait") else full


def shard_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return a tensor that every rank holds whole, sharded as a parameter is; unchanged for a plain parameter."""
    if not hasattr(parameter, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = parameter
    return DTensor.from_local(whole, sharded.device_mesh, [Replicate()], run_check=False).redistribute(
        placements=sharded.placements
    )
