"""Where the steps of environments run: in threads and real time, or on a clock of discrete events.

Both are used in the same way: a step is submitted under a number, and what has ended is collected.
"""

import heapq
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from learning.environments.protocol import Outcome

Step = Callable[[], Outcome]


@dataclass(frozen=True)
class Answer:
    """A step that has ended."""

    number: int
    outcome: Outcome | None
    seconds: float
    measured: bool
    """Whether the seconds are those that passed in fact."""
    error: Exception | None = None


class Clock(Protocol):
    """Runs steps."""

    exact: bool
    """Whether what it does is the same in every run, because nothing takes real time."""
    pause: float | None
    """Seconds that a step of a flight waits where nothing is decoded; None: as long as it takes."""

    def submit(self, number: int, step: Step) -> None:
        """Have a step run as soon as there is a worker for it; `number` is the caller's name for it."""
        ...

    def collect(self, wait_s: float | None = 0.0) -> list[Answer]:
        """What has ended, by number; waits up to so many seconds (None: as long as it takes) for the first one."""
        ...

    def tick(self) -> None:
        """A decode step has passed."""
        ...

    def forget(self) -> None:
        """What is under way is wanted by nobody any more."""
        ...

    def beside(self) -> "Clock":
        """The same clock and workers for another caller, with numbers of its own."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    @property
    def now(self) -> float:
        """Seconds."""
        ...


class ThreadClock:
    """Real time: `workers` steps at once, each in a thread."""

    exact = False
    pause = 0.003

    def __init__(self, workers: int) -> None:
        # A thread is made when there is something for it to do.
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="environment")
        self.under_way: dict[Future[Answer], int] = {}

    @property
    def now(self) -> float:
        """Of the machine's clock."""
        return time.perf_counter()

    def submit(self, number: int, step: Step) -> None:
        """Queue a step."""
        self.under_way[self.pool.submit(_run_timed, number, step)] = number

    def collect(self, wait_s: float | None = 0.0) -> list[Answer]:
        """What has ended."""
        if not self.under_way:
            return []
        done, _ = wait(self.under_way, timeout=wait_s, return_when=FIRST_COMPLETED)
        for one in done:
            del self.under_way[one]
        return sorted((one.result() for one in done), key=lambda answer: answer.number)

    def tick(self) -> None:
        """Real time passes by itself."""

    def forget(self) -> None:
        """Steps that run end by themselves; those that wait are not begun."""
        for one in self.under_way:
            one.cancel()
        self.under_way = {}

    def beside(self) -> "Threads":
        """The same threads."""
        other = copy(self)
        other.under_way = {}
        return other

    def close(self) -> None:
        """End the threads, without waiting for steps that run."""
        self.forget()
        self.pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class Time:
    """What a virtual clock shows, in whole nanoseconds: intervals are the same however late it is."""

    now: int = 0
    waited: int = 0


SECOND = 10**9
"""Nanoseconds."""


class VirtualClock:
    """Discrete events: nothing waits in fact, so that what would take hours is computed in no time, and exactly.

    A step takes the seconds that `latency` gives for its outcome (None: those it tells itself), a decode step takes
    `decode_s`; `workers` steps run at once (None: all of them). Waiting jumps to the next event.
    """

    exact = True

    def __init__(
        self, latency: Callable[[Outcome], float] | None = None, *, decode_s: float = 0.0, workers: int | None = None
    ) -> None:
        self.latency = latency or (lambda outcome: outcome.seconds or 0.0)
        self.decode_s, self.workers = decode_s, workers
        self.time = Time()
        self.events: list[tuple[int, int, Answer]] = []

    @property
    def now(self) -> float:
        """Seconds that have passed."""
        return self.time.now / SECOND

    @property
    def waited(self) -> float:
        """Seconds that passed while nothing was decoded."""
        return self.time.waited / SECOND

    def submit(self, number: int, step: Step) -> None:
        """Run a step at once; it ends when its time has passed, after those before it have left it a worker."""
        answer = _run_timed(number, step)
        seconds = 0.0 if answer.outcome is None else float(self.latency(answer.outcome))
        begin = self.time.now
        if self.workers is not None and len(self.events) >= self.workers:
            begin = sorted(end for end, *_ in self.events)[-self.workers]
        ended = Answer(number, answer.outcome, seconds, False, answer.error)
        heapq.heappush(self.events, (begin + round(seconds * SECOND), number, ended))

    def collect(self, wait_s: float | None = 0.0) -> list[Answer]:
        """What has ended by now; where it waits, time goes on to the next event."""
        if self.events and self.events[0][0] > self.time.now:
            left = self.events[0][0] - self.time.now
            passed = left if wait_s is None else min(left, round(wait_s * SECOND))
            self.time.now += passed
            self.time.waited += passed
        done = []
        while self.events and self.events[0][0] <= self.time.now:
            done.append(heapq.heappop(self.events)[2])
        return sorted(done, key=lambda answer: answer.number)

    def tick(self) -> None:
        """A decode step takes its time."""
        self.time.now += round(self.decode_s * SECOND)

    def forget(self) -> None:
        """Nothing is under way."""
        self.events = []

    @property
    def pause(self) -> float | None:
        """A decode step of nothing."""
        return self.decode_s or None

    def beside(self) -> "Virtual":
        """The same time, with events of its own; `workers` are of each."""
        other = copy(self)
        other.events = []
        return other

    def close(self) -> None:
        """There is nothing to end."""


def _run_timed(number: int, step: Step) -> Answer:
    """Run a step; what it raises is told by whoever collects it."""
    began = time.perf_counter()
    try:
        outcome = step()
    except Exception as error:
        return Answer(number, None, time.perf_counter() - began, True, error)
    if outcome.seconds is not None:
        return Answer(number, outcome, float(outcome.seconds), False)
    return Answer(number, outcome, time.perf_counter() - began, True)
