"""An event loop in a thread of its own, for environments of other libraries that are written with coroutines."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from learning.environments.time_limit import StepTimeout

T = TypeVar("T")


class EventLoop:
    """Runs coroutines of several threads in one loop, so that what they share belongs to one loop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return the result of a coroutine, or raise its exception. Raise StepTimeout if it takes longer."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._start())
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise  # the coroutine's own
            future.cancel()
            raise StepTimeout(f"no answer within {seconds:g} seconds") from None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, soon; nothing happens after the loop has ended."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, daemon=True, name="environment loop").start()
            return self.loop
