"""Clocks that run the steps of environments: threads in real time, or a simulation of discrete events.

Both have one protocol: a step is submitted under a number, and ended steps are collected.
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
    """Whether the seconds are real time."""
    error: Exception | None = None


class Clock(Protocol):
    """Runs steps."""

    exact: bool
    """Whether every run is the same, because nothing depends on real time."""

    @property
    def pause(self) -> float | None:
        """Return the seconds that a step of a flight waits if nothing is decoded; None: without limit."""
        ...

    def submit(self, number: int, step: Step) -> None:
        """Run a step as soon as a worker is free; `number` identifies it for the caller."""
        ...

    def collect(self, wait_s: float | None = 0.0) -> list[Answer]:
        """Return ended steps by number; wait up to `wait_s` seconds (None: without limit) for the first one."""
        ...

    def tick(self) -> None:
        """Advance by a decode step."""
        ...

    def forget(self) -> None:
        """Drop all running steps."""
        ...

    def share(self) -> "Clock":
        """Return the same clock and workers for another caller, with its own numbers."""
        ...

    def close(self) -> None:
        """Close the clock."""
        ...

    @property
    def now(self) -> float:
        """Return the time in seconds."""
        ...


class ThreadClock:
    """Real time: up to `workers` steps at once, each in a thread."""

    exact = False
    pause = 0.003

    def __init__(self, workers: int) -> None:
        # A thread is started only when there is a step for it.
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="environment")
        self.under_way: dict[Future[Answer], int] = {}

    @property
    def now(self) -> float:
        """Return the time of the machine's clock."""
        return time.perf_counter()

    def submit(self, number: int, step: Step) -> None:
        """Queue a step."""
        self.under_way[self.pool.submit(_run_timed, number, step)] = number

    def collect(self, wait_s: float | None = 0.0) -> list[Answer]:
        """Return ended steps."""
        if not self.under_way:
            return []
        done, _ = wait(self.under_way, timeout=wait_s, return_when=FIRST_COMPLETED)
        for future in done:
            del self.under_way[future]
        return sorted((future.result() for future in done), key=lambda answer: answer.number)

    def tick(self) -> None:
        """Do nothing: real time passes without a call."""

    def forget(self) -> None:
        """Cancel waiting steps, and ignore the results of running ones."""
        for future in self.under_way:
            future.cancel()
        self.under_way = {}

    def share(self) -> "ThreadClock":
        """Return a clock with the same threads."""
        other = copy(self)
        other.under_way = {}
        return other

    def close(self) -> None:
        """End the threads without waiting for running steps."""
        self.forget()
        self.pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class Time:
    """Time of a virtual clock in integer nanoseconds, so that intervals do not depend on the time of day."""

    now: int = 0
    waited: int = 0


SECOND = 10**9
"""Nanoseconds."""


class VirtualClock:
    """Simulation by discrete events: exact, and without waiting in real time.

    A step takes the seconds that `latency` returns for its outcome (None: `seconds` of the outcome), a decode step
    takes `decode_s`; `workers` steps run at once (None: all). Waiting advances the time to the next event.
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
        """Return the seconds that have passed."""
        return self.time.now / SECOND

    @property
    def waited(self) -> float:
        """Return the seconds that passed while nothing was decoded."""
        return self.time.waited / SECOND

    def submit(self, number: int, step: Step) -> None:
        """Run a step now; it ends when its duration has passed since a worker was free."""
        answer = _run_timed(number, step)
        seconds = 0.0 if answer.outcome is None else float(self.latency(answer.outcome))
        begin = self.time.now
        if self.workers is not None and len(self.events) >= self.workers:
            begin = sorted(end for end, *_ in self.events)[-self.workers]
        ended = Answer(number, answer.outcome, seconds, False, answer.error)
        heapq.heappush(self.events, (begin + round(seconds * SECOND), number, ended))

    def collect(self, wait_s: float | None = 0.0) -> list[Answer]:
        """Return steps that have ended; waiting advances the time to the next event."""
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
        """Advance by the duration of a decode step."""
        self.time.now += round(self.decode_s * SECOND)

    def forget(self) -> None:
        """Drop all events."""
        self.events = []

    @property
    def pause(self) -> float | None:
        """Return the duration of a decode step."""
        return self.decode_s or None

    def share(self) -> "VirtualClock":
        """Return a clock with the same time and its own events; each has `workers`."""
        other = copy(self)
        other.events = []
        return other

    def close(self) -> None:
        """Do nothing."""


def _run_timed(number: int, step: Step) -> Answer:
    """Run a step, and return its outcome or the exception that it raised."""
    began = time.perf_counter()
    try:
        outcome = step()
    except Exception as error:
        return Answer(number, None, time.perf_counter() - began, True, error)
    if outcome.seconds is not None:
        return Answer(number, outcome, float(outcome.seconds), False)
    return Answer(number, outcome, time.perf_counter() - began, True)
