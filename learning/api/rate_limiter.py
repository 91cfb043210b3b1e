"""Spacing of requests, so that a server's limits are kept rather than met."""

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimiter:
    """So many units per minute, evenly: whoever takes waits until those before have been paid off.

    Nothing is saved up while nobody asks, so that no minute sees more than its share and one request.
    """

    def __init__(
        self,
        per_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        self.seconds = 60.0 / per_minute if per_minute else 0.0
        self.clock, self.sleep = clock, sleep
        self.free = 0.0

    async def take(self, units: float = 1.0) -> None:
        """Wait for one's turn."""
        now = self.clock()
        at = max(now, self.free)
        self.free = at + units * self.seconds
        while (left := max(at, self.barred) - self.clock()) > 0:
            await self.sleep(left)

    def give_back(self, units: float) -> None:
        """Take back what was taken and not used; negative: more was used."""
        self.free -= units * self.seconds

    barred: float = 0.0
    """Nobody goes before this time."""

    def bar(self, seconds: float) -> None:
        """Let nobody go for so long, as a server that throttles asks."""
        self.barred = max(self.barred, self.clock() + seconds)
