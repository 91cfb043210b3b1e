"""Generation that goes on by itself: requests in, completions out, weights replaced between two decode steps.

The service owns a policy, an engine and its flight. It runs in a thread of its own (`start`), in this process or in an
actor's, or turn by turn (`turn`) where time is to be counted in decode steps.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from learning.engines.protocol import Generation, Request, Sampling


class Service(Protocol):
    """What a client may ask of a service, in this process or in another."""

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests, each under a ticket that no other open one has; returns at once."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[tuple[int, Generation]]:
        """Completions that ended since the last call; waits up to so many seconds for the first one."""
        ...

    def suspend(self) -> list[tuple[int, Generation]]:
        """Take everything out, also what waits, as suspended completions."""
        ...

    def load(self, receipt: Any) -> None:
        """Take the weights of a receipt between two decode steps; returns when they are in place."""
        ...

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Log-probabilities of the second of each pair of token ids after the first."""
        ...

    def stats(self) -> dict[str, float]:
        """Numbers of the service so far: tokens, decode steps, seconds idle, queue depth, version."""
        ...
