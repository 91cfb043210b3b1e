"""Weight transport by a collective: the trainer broadcasts, every engine receives, nothing is written to disk.

Rank 0 of the process group is the trainer. The group is separate from the training group of a trainer's ranks. If a
member is lost, the group cannot continue; create a new one, or use files.

Between graphics cards the backend is `nccl`, else `gloo`.
"""

import socket
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from learning.generation.weights.protocol import Receipt, collect_weights, make_receipt
from learning.models.policy import Policy
from schemas.errors import StepError

Backend = Literal["gloo", "nccl"]
SECONDS = 300.0
"""Timeout of a member that waits for the others."""
BACKLOG = 1024


class Meeting:
    """Rendezvous of the members of a group; those that join need `address`.

    `host` is the address of this machine for the others.
    """

    def __init__(self, size: int, *, host: str = "127.0.0.1", seconds: float = SECONDS) -> None:
        self.size, self.seconds = size, seconds
        listener = socket.create_server((host, 0), backlog=BACKLOG)
        self.host, port = listener.getsockname()
        self.address = f"{self.host}:{port}"
        self.store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]  # exported without __all__
            self.host, port, None, True, timedelta(seconds=seconds), False, master_listen_fd=listener.detach()
        )


class Link:
    """Membership in a group; raise StepError if the others do not join."""

    def __init__(self, store: Any, rank: int, size: int, backend: Backend, host: str, seconds: float) -> None:
        self.rank, self.backend = rank, backend
        self.limit = timedelta(seconds=seconds)
        store = dist.PrefixStore(backend, store)  # pyright: ignore[reportPrivateImportUsage]  # as TCPStore
        try:
            if backend == "nccl":
                nccl: Any = dist.ProcessGroupNCCL  # the stub lacks the overload with a timeout
                self.group: Any = nccl(store, rank, size, self.limit)
            else:
                gloo: Any = dist.ProcessGroupGloo  # the stub lacks _Options
                options = gloo._Options()
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
                options._timeout = self.limit
                self.group = dist.ProcessGroupGloo(store, rank, size, options)
        except (RuntimeError, dist.DistError) as error:
            raise StepError(f"weight sync: not all {size} members joined the group: {_first_line(error)}") from error

    def broadcast(self, tensor: Tensor) -> Any:
        """Begin to send (rank 0) or receive a tensor; return a handle to wait for."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        return self.group.broadcast([tensor], options)

    def wait(self, works: Iterable[Any]) -> None:
        """Return when the transfers are done; raise StepError if a member is lost or too slow."""
        try:
            for work in works:
                work.wait(self.limit)
        except (RuntimeError, dist.DistError) as error:
            raise StepError(f"weight sync: a member of the group is lost or too slow: {_first_line(error)}") from error


def join(
    address: str,
    rank: int,
    size: int,
    *,
    backend: Backend = "gloo",
    host: str = "127.0.0.1",
    seconds: float = SECONDS,
) -> Link:
    """Join the group at an address as a rank ≥ 1; return when all `size` members have joined."""
    at, _, port = address.rpartition(":")
    try:
        timeout = timedelta(seconds=seconds)
        # The stub of torch.distributed does not export TCPStore.
        store = dist.TCPStore(at, int(port), None, False, timeout)  # pyright: ignore[reportPrivateImportUsage]
    except (RuntimeError, dist.DistError) as error:
        raise StepError(f"weight sync: no trainer answers at {address}: {_first_line(error)}") from error
    return Link(store, rank, size, backend, host, seconds)


class Collective:
    """Trainer's end: the first publication waits for the members of `meeting`."""

    def __init__(self, policy: Policy, meeting: Meeting, *, backend: Backend = "gloo") -> None:
        self.policy, self.meeting, self.version = policy, meeting, -1
        self.backend: Backend = backend
        self.link: Link | None = None
        self.sending: list[Tensor] = []

    def publish(self, version: int) -> Receipt:
        """Return the receipt of the current weights; `wait` sends them, when receivers have been told to load."""
        weights = collect_weights(self.policy.model)
        receipt = make_receipt(version, "collective", self.meeting.address, weights)
        self.sending = [weights[name].contiguous() for name in _list_sent(receipt)]
        self.version = version
        return receipt

    def wait(self) -> None:
        """Send the published weights; return when every member has them."""
        if self.link is None:
            meeting = self.meeting
            self.link = Link(meeting.store, 0, meeting.size, self.backend, meeting.host, meeting.seconds)
        sending, self.sending = self.sending, []
        self.link.wait([self.link.broadcast(tensor) for tensor in sending])

    def reset_cache(self) -> None:
        """Discard the published weights without sending them."""
        self.sending = []


class Arrivals:
    """Engine's end of a collective: `fetch` receives the tensors of a receipt."""

    def __init__(self, link: Link, device: str | torch.device = "cpu") -> None:
        self.link, self.device = link, device

    def fetch(self, receipt: Receipt) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors as they arrive; raise StepError if they do not."""
        for name in _list_sent(receipt):
            expected = receipt.checksums[name]
            tensor = torch.empty(expected.shape, dtype=getattr(torch, expected.dtype), device=self.device)
            self.link.wait([self.link.broadcast(tensor)])
            yield name, tensor


def _list_sent(receipt: Receipt) -> list[str]:
    """Return names in the order of sending: every tensor once."""
    return sorted(name for name in receipt.checksums if name not in receipt.aliases)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
