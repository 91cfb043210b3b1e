"""Even spacing of requests, to stay within a server's rate limits."""

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimiter:
    """At most `per_minute` units, evenly spaced: a caller waits until earlier units have elapsed.

    Idle time is not accumulated, so that no minute exceeds the limit by more than one request.
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
        """Wait until the units are available."""
        now = self.clock()
        at = max(now, self.free)
        self.free = at + units * self.seconds
        while (left := max(at, self.barred) - self.clock()) > 0:
            await self.sleep(left)

    def give_back(self, units: float) -> None:
        """Return unused units; negative if more were used."""
        self.free -= units * self.seconds

    barred: float = 0.0
    """No caller continues before this time."""

    def bar(self, seconds: float) -> None:
        """Block all callers for some seconds, as a throttling server requests."""
        self.barred = max(self.barred, self.clock() + seconds)
