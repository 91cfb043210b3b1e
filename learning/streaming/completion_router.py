"""Route completions to callbacks as they end, while the policy is trained.

In real time a thread routes them. With `steps_per_update` there is no thread: a fixed number of decode steps takes the
place of an update, and a caller that waits runs further steps.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from learning.generation.services.rollout_service import Ended
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.errors import PosttrainError, StepError

POLL = 0.003
"""Seconds between two looks at what has ended."""
SCORERS = 256
"""Groups that may wait for their scores at the same time."""
Callback = Callable[[Generation], None]


class RolloutSource(Protocol):
    """A service that generates in a thread of this process, or several in processes of their own."""

    def submit(self, requests: list[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Return completions that ended."""
        ...

    def suspend(self) -> list[Ended]:
        """Take everything out; completions that ended meanwhile may be among it."""
        ...

    def sync(self, version: int, *, each: bool = False) -> None:
        """Give it the policy's weights; return when they are in place.

        `each`: several services take them one after the other while the others go on. This call returns before that;
        the attribute `settled` says when they are in place everywhere.
        """
        ...

    def stats(self) -> list[dict[str, float]]:
        """Return statistics of every service."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


class CompletionRouter:
    """An engine over a source, and the threads that route completions.

    `changed` guards everything; `callbacks` are by ticket and number of the completion.
    """

    def __init__(self, source: RolloutSource) -> None:
        self.source: Any = source
        """Some sources also have `start`, `turn` and `settled`."""
        self.version = 0
        self.interrupt = True
        """Whether running completions go on under new weights; otherwise new weights wait until they have ended."""
        self.rolling = False
        """Whether services take new weights one after the other, and the trainer does not wait for them."""
        self.steps_per_update: int | None = None
        self.error: PosttrainError | None = None
        self.changed = threading.Condition()
        self.callbacks: dict[tuple[int, int], Callback] = {}
        self.scorers: ThreadPoolExecutor | None = None
        self._tickets = 0
        self._router: threading.Thread | None = None
        self._closed = False

    def start(self, steps_per_update: int | None) -> None:
        """Start routing, in real time or by decode steps. Raise StepError where steps cannot be counted."""
        self.steps_per_update = steps_per_update
        if steps_per_update is not None:
            if not hasattr(self.source, "turn"):
                raise StepError(
                    "steps_per_update counts decode steps of generation in the step's own process, and this step has "
                    "processes for it: leave out `resources.rollout`, or steps_per_update"
                )
        elif self._router is None:
            if hasattr(self.source, "start"):
                self.source.start()
            self.scorers = ThreadPoolExecutor(SCORERS, thread_name_prefix="rewards")
            self._router = threading.Thread(target=self._route_until_closed, name="stream", daemon=True)
            self._router.start()

    def add_callbacks(self, callbacks: dict[int, Callback]) -> int:
        """Return a ticket whose completions go to these callbacks, by number."""
        self._tickets += 1
        self.callbacks |= {(self._tickets, number): callback for number, callback in callbacks.items()}
        return self._tickets

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds. Raise StepError for an error of another thread."""
        if self.steps_per_update is None:
            with self.changed:
                self.changed.wait_for(lambda: condition() or self.error)
                self.raise_error()
            return
        while not condition():
            if not self.run_step():
                raise StepError("stream: no completion is being generated")

    def drain(self) -> None:
        """Return when no completion is outstanding."""
        self.wait_until(lambda: not self.callbacks)

    @property
    def settled(self) -> bool:
        """Whether every service has the latest weights."""
        return getattr(self.source, "settled", True)

    def settle(self) -> None:
        """Return when every service has the latest weights; running completions go on meanwhile."""
        self.wait_until(lambda: self.settled)

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return completions for other parts of the loop, generated alongside those in flight.

        Where running completions may not be interrupted, these are generated after them.
        """
        if sampling.target is not None or sampling.window is not None:
            raise StepError(
                "stream: a rollout that samples ahead cannot go with parts that cut completions into windows"
            )
        if self._router is None and self.steps_per_update is None:
            self.start(None)
        if not self.interrupt:
            self.drain()
        self.settle()
        ended: list[dict[int, Generation]] = [{} for _ in requests]
        with self.changed:
            submitted: list[tuple[int, Request]] = []
            for of, request in zip(ended, requests, strict=True):
                numbers = range(request.first, request.first + request.n)
                ticket = self.add_callbacks({number: partial(of.__setitem__, number) for number in numbers})
                submitted.append((ticket, request))
            self.source.submit(submitted, sampling)
        self.wait_until(lambda: all(len(of) == r.n for of, r in zip(ended, requests, strict=True)))
        return [[of[number] for number in sorted(of)] for of in ended]

    def sync(self, version: int) -> None:
        """Give generation the policy's new weights: completions in flight go on under them, or end first."""
        for _ in range(self.steps_per_update or 0):
            self.run_step()
        if not self.interrupt:
            self.drain()
        self.settle()
        with self.changed:
            self.raise_error()
            self.source.sync(version, **({"each": True} if self.rolling else {}))
            self.version = version

    def suspend_all(self) -> None:
        """Suspend everything; a completion that ends at this very moment counts as ended."""
        for ticket, made in (*self.source.collect(), *self.source.suspend(), *self.source.collect()):
            self.callbacks.pop((ticket, made.sample))(made)

    def run_step(self) -> bool:
        """Run one decode step and route what ended with it; return whether anything happened."""
        with self.changed:
            flown = self.source.turn()
            return self._route() or flown

    def close(self) -> None:
        """Stop the threads and the source; pending scores are dropped."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        if self._router is not None:
            self._router.join()
        if self.scorers is not None:
            self.scorers.shutdown(wait=False, cancel_futures=True)
        self.source.close()

    def fail(self, error: BaseException) -> None:
        """Pass an error to the trainer, which raises it when it next waits at the latest."""
        ours = error if isinstance(error, PosttrainError) else StepError(f"stream: {type(error).__name__}: {error}")
        self.error = self.error or ours
        self.changed.notify_all()

    def raise_error(self) -> None:
        """Raise the first error of another thread, if there was one."""
        if self.error is not None:
            raise self.error

    def _route(self) -> bool:
        settled = self.settled
        ended = self.source.collect()
        for ticket, one in ended:
            self.callbacks.pop((ticket, one.sample))(one)
        if ended or settled != self.settled:
            self.changed.notify_all()
        return bool(ended)

    def _route_until_closed(self) -> None:
        pause = threading.Event()
        while not self._closed and self.error is None:
            with self.changed:
                try:
                    routed = self._route()
                except Exception as error:
                    self.fail(error)
                    return
            if not routed:
                pause.wait(POLL)
