"""Continuous generation: requests in, completions out, weights replaced between two decode steps.

The service owns an engine and its flights. It runs in its own thread (`start`), in this process or in an actor's, or
turn by turn (`turn`), if time is counted in decode steps. A caller waits for a completion only in `collect`;
submitting, suspending and loading take effect between two steps.
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
    """The calls of a client to a service, in this process or in another."""

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests, each under a unique ticket; return at once."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Return completions that ended since the last call; wait up to `wait_s` seconds for the first one."""
        ...

    def suspend(self) -> list[Ended]:
        """Take out and return all running and waiting completions as suspended; `collect` returns the ended ones."""
        ...

    def load(self, receipt: Any) -> None:
        """Load the weights of a receipt between two decode steps; return when they are in place."""
        ...

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probabilities of the second of each pair of token ids after the first."""
        ...

    def stats(self) -> dict[str, float]:
        """Return statistics: decode steps, tokens, seconds busy and idle, open completions, version."""
        ...


class RolloutService:
    """A service over an engine; `take` loads the weights of a receipt and notifies the engine (`PolicyReceiver.load`).

    Requests with equal sampling options share a flight. Errors of the engine are raised by the next call.
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
        self.counts = dict.fromkeys(("steps", "tokens", "ended", "loads", "busy_s", "idle_s"), 0.0)

    def start(self) -> "RolloutService":
        """Work in a thread of its own from now on."""
        self.thread = threading.Thread(target=self._work, name="rollouts", daemon=True)
        self.thread.start()
        return self

    def close(self) -> None:
        """End the thread; running completions are lost."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join()

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests; a later call raises StepError if one cannot be sampled."""

        def add() -> None:
            if sampling not in self.flights:
                self.flights[sampling] = self.engine.flight(sampling)
            for ticket, request in requests:
                self.flights[sampling].add(ticket, request)

        self._do(add)

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Return completions that have ended; raise StepError if the engine failed since the last call."""
        with self.changed:
            if not self.outbox and wait_s:
                self.changed.wait_for(lambda: self.outbox or self.broken or self.closed, wait_s)
            self._check()
            ended, self.outbox = self.outbox, []
            return ended

    def suspend(self) -> list[Ended]:
        """Take out and return all completions, in the order in which they began within a flight."""

        def out() -> list[Ended]:
            suspended = [completion for flight in self.flights.values() for completion in flight.suspend()]
            self.flights = {}
            return suspended

        return self._do(out).result()

    def load(self, receipt: Any) -> None:
        """Load weights and return when they are in place; raise StepError if they cannot be loaded."""

        def take() -> None:
            self.take(receipt)
            self.counts["loads"] += 1

        self._do(take).result()

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0) -> list[list[float]]:
        """Return log-probabilities under the current weights; raise StepError if the service has no policy."""
        if self.policy is None:
            raise StepError("rollout service: it has an engine without a policy, so it cannot compute likelihoods")
        model = self.policy.model
        return self._do(lambda: compute_likelihoods(model, pairs, temperature)).result()

    def stats(self) -> dict[str, float]:
        """Return statistics since the start."""
        return {**self.counts, "open": float(self.running), "version": float(getattr(self.engine, "version", -1))}

    @property
    def running(self) -> int:
        """Return the number of completions in flight."""
        return sum(flight.running for flight in list(self.flights.values()))

    def turn(self) -> bool:
        """Decode one step of every flight; return whether any was running."""
        stepped = False
        for sampling, flight in list(self.flights.items()):
            if not flight.running:
                if len(self.flights) > 1:
                    del self.flights[sampling]
                continue
            stepped = True
            ended = flight.step()
            self.counts["ended"] += len(ended)
            self.counts["tokens"] += sum(generation.sampled for _, generation in ended)
            if ended:
                with self.changed:
                    self.outbox += ended
                    self.changed.notify_all()
        self.counts["steps"] += stepped
        return stepped

    def _do(self, what: Callable[[], Any]) -> Future:
        """Run a function between two decode steps: now, or by the thread if it runs."""
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
                stepped = self.turn()
            except Exception as error:
                self._break(error)
                return
            if stepped:
                self.counts["busy_s"] += time.perf_counter() - began
                continue
            with self.changed:
                self.changed.wait_for(lambda: self.inbox or self.closed)
            self.counts["idle_s"] += time.perf_counter() - began

    def _answer(self, what: Callable[[], Any], answer: Future) -> None:
        try:
            answer.set_result(what())
        except Exception as error:
            answer.set_exception(error)
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Store an error, to raise it in the next call and in all waiting ones."""
        if not isinstance(error, PosttrainError):
            error = StepError(f"rollout service: {type(error).__name__}: {error}")
        with self.changed:
            self.broken = error if isinstance(error, StepError) else StepError(str(error))
            waiting, self.inbox = self.inbox, deque()
            self.changed.notify_all()
        for _, answer in waiting:
            answer.set_exception(self.broken)
