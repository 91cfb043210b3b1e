"""What a stream needs of generation: somewhere else, in a thread of this process or in processes of their own."""

from typing import Protocol

from learning.generation.services.rollout_service import Ended
from learning.samples.engine_protocol import Request, Sampling


class Source(Protocol):
    """A service beside the trainer (`asynchrony.local_rollouts`), or several (`distributed.replicas`)."""

    def submit(self, requests: list[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Completions that ended."""
        ...

    def suspend(self) -> list[Ended]:
        """Take everything out; completions that ended meanwhile may come along."""
        ...

    def sync(self, version: int, *, each: bool = False) -> None:
        """Give it the policy's weights as they are now; returns when they are in place.

        `each`: where there are several services, one after the other while the others go on; returns before that, and
        `settled` says when they are in place everywhere.
        """
        ...

    def stats(self) -> list[dict[str, float]]:
        """What it tells of itself."""
        ...

    def close(self) -> None:
        """End it."""
        ...
