"""Peak memory of tensors during a block: counted operation by operation on a CPU, read from the allocator on a GPU."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Peak:
    """Bytes: the most that was held at a time."""

    bytes: int = 0


class Counter(TorchDispatchMode):
    """Adds up the storages of all tensors that go into and come out of operations, until each is freed.

    What a kernel takes for itself and gives back is not seen; it is small on a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self.held: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._see(args)
        out = func(*args, **(kwargs or {}))
        self._see(out)
        return out

    def _see(self, values: Any) -> None:
        for tensor in tree_leaves(values):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.held:
                    self.held[key] = storage.nbytes()
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live -= self.held.pop(key, 0)


@contextmanager
def peak_of(device: str = "cpu") -> Iterator[Peak]:
    """Measure a block; the number is there when it has ended."""
    peak = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device)
        return
    with Counter() as counter:
        yield peak
    peak.bytes = counter.peak
