"""Generation that goes on by itself: requests in, completions out, weights replaced between two decode steps.

The service owns an engine and its flights. It runs in a thread of its own (`start`), in this process or in an actor's,
or turn by turn (`turn`), where time is to be counted in decode steps. Whoever calls it never waits for a completion
unless he asks to: what is submitted, suspended or loaded takes its place between two steps.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from learning.generation.services.rescoring import compute_likelihoods
from learning.models.policy import Policy
from learning.samples.engine_protocol import Flight, FlyingEngine, Generation, Request, Sampling
from schemas.errors import PosttrainError, StepError

Ended = tuple[int, Generation]
"""A completion with the ticket of its request."""


class Service(Protocol):
    """What a client may ask of a service, in this process or in another."""

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests, each under a ticket that no other open one has; returns at once."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Completions that ended since the last call; waits up to so many seconds for the first one."""
        ...

    def suspend(self) -> list[Ended]:
        """Take everything out, also what waits, as suspended completions; what has ended is left to `collect`."""
        ...

    def load(self, receipt: Any) -> None:
        """Take the weights of a receipt between two decode steps; returns when they are in place."""
        ...

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0) -> list[list[float]]:
        """Log-probabilities of the second of each pair of token ids after the first."""
        ...

    def stats(self) -> dict[str, float]:
        """Numbers of the service so far: decode steps, tokens, seconds busy and idle, what is open, version."""
        ...


class RolloutService:
    """`take` puts the weights of a receipt in place and tells the engine (`Receiver.load`).

    Requests of one sampling fly together; of another, beside them. Errors of the engine are raised by the next call.
    """

    def __init__(self, engine: FlyingEngine, take: Callable[[Any], None], policy: Policy | None = None) -> None:
        self.engine, self.take, self.policy = engine, take, policy
        self.flights: dict[Sampling, Flight] = {}
        self.inbox: deque[tuple[Callable[[], Any], Future]] = deque()
        self.outbox: list[Ended] = []
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.broken: StepError | None = None
        self.closed = False
        self.told = dict.fromkeys(("steps", "tokens", "ended", "loads", "busy_s", "idle_s"), 0.0)

    def start(self) -> "RolloutService":
        """Work in a thread of its own from now on."""
        self.thread = threading.Thread(target=self._work, name="rollouts", daemon=True)
        self.thread.start()
        return self

    def close(self) -> None:
        """End the thread; what is in flight is lost."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join()

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests; a request that cannot be done is told by a later call."""

        def add() -> None:
            if sampling not in self.flights:
                self.flights[sampling] = self.engine.flight(sampling)
            for ticket, request in requests:
                self.flights[sampling].add(ticket, request)

        self._do(add)

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Completions that have ended. Raises StepError for what went wrong meanwhile."""
        with self.changed:
            if not self.outbox and wait_s:
                self.changed.wait_for(lambda: self.outbox or self.broken or self.closed, wait_s)
            self._check()
            made, self.outbox = self.outbox, []
            return made

    def suspend(self) -> list[Ended]:
        """Take everything out, in the order of its beginning within a sampling."""

        def out() -> list[Ended]:
            made = [one for flight in self.flights.values() for one in flight.suspend()]
            self.flights = {}
            return made

        return self._do(out).result()

    def load(self, receipt: Any) -> None:
        """Put weights in place; returns when they are there. Raises StepError."""

        def take() -> None:
            self.take(receipt)
            self.told["loads"] += 1

        self._do(take).result()

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0) -> list[list[float]]:
        """By the weights that are in place now. Raises StepError where the service has an engine alone."""
        if self.policy is None:
            raise StepError("rollout service: its engine has no model here that could tell likelihoods")
        model = self.policy.model
        return self._do(lambda: compute_likelihoods(model, pairs, temperature)).result()

    def stats(self) -> dict[str, float]:
        """Numbers so far."""
        return {**self.told, "open": float(self.running), "version": float(getattr(self.engine, "version", -1))}

    @property
    def running(self) -> int:
        """Completions that have not ended, of what has been taken from the inbox."""
        return sum(flight.running for flight in list(self.flights.values()))

    def turn(self) -> bool:
        """One decode step of every flight; False when nothing flies."""
        flown = False
        for sampling, flight in list(self.flights.items()):
            if not flight.running:
                if len(self.flights) > 1:
                    del self.flights[sampling]
                continue
            flown = True
            ended = flight.step()
            self.told["ended"] += len(ended)
            self.told["tokens"] += sum(generation.sampled for _, generation in ended)
            if ended:
                with self.changed:
                    self.outbox += ended
                    self.changed.notify_all()
        self.told["steps"] += flown
        return flown

    def _do(self, what: Callable[[], Any]) -> Future:
        """Do something between two steps: now, or when the thread comes to it."""
        answer: Future = Future()
        with self.changed:
            self._check()
            if self.thread is not None:
                self.inbox.append((what, answer))
                self.changed.notify_all()
                return answer
        self._answer(what, answer)
        if error := answer.exception():
            raise error
        return answer

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.closed:
            raise StepError("rollout service: it was closed")

    def _work(self) -> None:
        while not self.closed:
            began = time.perf_counter()
            try:
                while self.inbox:
                    self._answer(*self.inbox.popleft())
                flown = self.turn()
            except Exception as error:
                self._break(error)
                return
            if flown:
                self.told["busy_s"] += time.perf_counter() - began
                continue
            with self.changed:
                self.changed.wait_for(lambda: self.inbox or self.closed)
            self.told["idle_s"] += time.perf_counter() - began

    def _answer(self, what: Callable[[], Any], answer: Future) -> None:
        try:
            answer.set_result(what())
        except Exception as error:
            answer.set_exception(error)
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Say it to whoever calls next, and to whoever waits."""
        said = error if isinstance(error, PosttrainError) else StepError(f"rollouts: {type(error).__name__}: {error}")
        with self.changed:
            self.broken = said if isinstance(said, StepError) else StepError(str(said))
            waiting, self.inbox = self.inbox, deque()
            self.changed.notify_all()
        for _, answer in waiting:
            answer.set_exception(self.broken)
