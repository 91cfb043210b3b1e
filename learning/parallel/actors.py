"""Objects in other processes, as algorithms see them: calls that return futures, and the error that one has died.

Where they run is decided by the `Actors` that the step receives; `Threads` keeps them in this process.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.errors import PosttrainError, StepError

Factory = Callable[..., Any]


class Lost(StepError):
    """The process of an object has died; its open calls have no result."""


class Remote(Protocol):
    """An object in another process or thread. It runs the calls of one client in order, one at a time."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future:
        """Call a method; the future returns its result, or raises StepError with the object's message, or Lost."""
        ...

    def stop(self) -> None:
        """End the object and its process at once; its open calls raise Lost. May be called twice."""
        ...

    def alive(self) -> bool:
        """Return whether it can still answer, as far as is known here."""
        ...


class Actors(Protocol):
    """The workers that a step's `resources` give to its roles."""

    def size(self, role: str) -> int:
        """Return how many workers a role has; 0: no place of its own, its work is done in the step's process."""
        ...

    def start(self, role: str, factory: Factory, *args: Any, **kwargs: Any) -> list[Remote]:
        """Make `factory(*args, **kwargs)` in every worker of a role; raises StepError if they are at work already.

        Returns at once: if the factory fails, the first call raises its error.
        """
        ...

    def restart(self, remote: Remote) -> Remote:
        """Return a new object like one that has died or was stopped, in its place."""
        ...

    def close(self) -> None:
        """Stop everything."""
        ...


@dataclass
class Threads:
    """Objects in threads of this process: for tests, and for steps that have no process of their own.

    `sizes` are workers by role.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    _at_work: dict[str, list["Threaded"]] = field(default_factory=dict, repr=False)

    def size(self, role: str) -> int:
        """Return how many threads a role has."""
        return self.sizes.get(role, 0)

    def start(self, role: str, factory: Factory, *args: Any, **kwargs: Any) -> list[Remote]:
        """Return one object per thread of the role."""
        if any(remote.alive() for remote in self._at_work.get(role, [])):
            raise StepError(f"role {role}: its workers are at work already; stop them first")
        made = [Threaded(role, lambda: factory(*args, **kwargs)) for _ in range(self.size(role))]
        self._at_work[role] = made
        return list(made)

    def restart(self, remote: Remote) -> Remote:
        """Return a new thread with the same object."""
        assert isinstance(remote, Threaded)
        remote.stop()
        fresh = Threaded(remote.role, remote.make)
        self._at_work[remote.role] = [fresh if one is remote else one for one in self._at_work[remote.role]]
        return fresh

    def close(self) -> None:
        """Stop every thread."""
        for remote in (one for some in self._at_work.values() for one in some):
            remote.stop()


class Threaded:
    """An object in a thread; a call that runs when it is stopped goes on, and its result is dropped."""

    def __init__(self, role: str, make: Callable[[], Any]):
        self.role, self.make = role, make
        self.waiting: queue.SimpleQueue[tuple[str, tuple, dict, Future] | None] = queue.SimpleQueue()
        self.open: set[Future] = set()
        self.lock = threading.Lock()
        self.stopped = False
        threading.Thread(target=self._work, daemon=True, name=role).start()

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future:
        """Queue a call."""
        answer: Future = Future()
        with self.lock:
            if self.stopped:
                answer.set_exception(Lost(f"{self.role}: stopped"))
                return answer
            self.open.add(answer)
        self.waiting.put((method, args, kwargs, answer))
        return answer

    def stop(self) -> None:
        """Drop the object; its open calls raise Lost."""
        with self.lock:
            left, self.open, self.stopped = self.open, set(), True
        self.waiting.put(None)
        for answer in left:
            with suppress(Exception):  # it was answered just now
                answer.set_exception(Lost(f"{self.role}: stopped"))

    def alive(self) -> bool:
        """Return whether it has not been stopped."""
        return not self.stopped

    def _work(self) -> None:
        try:
            self._serve()
        except SystemExit:
            self.stop()  # it ends the thread as it would end a process

    def _serve(self) -> None:
        made: Any = None
        broken: StepError | None = None
        try:
            made = self.make()
        except Exception as error:
            broken = describe_error(error, self.role)
        while (one := self.waiting.get()) is not None and not self.stopped:
            method, args, kwargs, answer = one
            try:
                result, wrong = None if broken else getattr(made, method)(*args, **kwargs), broken
            except Exception as error:
                result, wrong = None, describe_error(error, self.role)
            self._answer(answer, result, wrong)
        if hasattr(made, "close"):  # a process would take with it what the object has started
            made.close()

    def _answer(self, answer: Future, result: Any, wrong: StepError | None) -> None:
        with self.lock:
            if answer not in self.open:
                return
            self.open.discard(answer)
        if wrong is not None:
            answer.set_exception(wrong)
        else:
            answer.set_result(result)


def describe_error(error: BaseException, role: str) -> StepError:
    """Return an object's error as a StepError; an error from outside posttrain is prefixed with its type."""
    return StepError(str(error) if isinstance(error, PosttrainError) else f"{role}: {type(error).__name__}: {error}")
