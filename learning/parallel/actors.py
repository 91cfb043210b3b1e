"""Objects in other processes, as algorithms know them: calls that answer later, and the news that one has died.

Where they run is the business of whoever hands an `Actors` to the step: `Threads` here keeps them in this process.
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
    """The process of an object has died; what it was asked has no answer."""


class Remote(Protocol):
    """An object somewhere else. It does one call after the other, in the order in which one client made them."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future:
        """The answer of a method, later. The future raises StepError with the object's own words, or Lost."""
        ...

    def stop(self) -> None:
        """End the object and its process at once; calls without an answer raise Lost. Twice is as good as once."""
        ...

    def alive(self) -> bool:
        """Whether it can still answer, as far as is known here."""
        ...


class Actors(Protocol):
    """The workers that a step's `resources` give to its roles."""

    def size(self, role: str) -> int:
        """How many workers a role has; 0: no place of its own, its work is done in the step's process."""
        ...

    def start(self, role: str, factory: Factory, *args: Any, **kwargs: Any) -> list[Remote]:
        """`factory(*args, **kwargs)` in every worker of a role. Raises StepError while the role is at work already.

        Returns at once: a factory that fails is told by the first call.
        """
        ...

    def restart(self, remote: Remote) -> Remote:
        """The same object made anew in the place of one that has died or was stopped."""
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
        """How many threads a role has."""
        return self.sizes.get(role, 0)

    def start(self, role: str, factory: Factory, *args: Any, **kwargs: Any) -> list[Remote]:
        """One object per thread of the role."""
        if any(remote.alive() for remote in self._at_work.get(role, [])):
            raise StepError(f"role {role}: its workers are at work already; stop them first")
        made = [Threaded(role, lambda: factory(*args, **kwargs)) for _ in range(self.size(role))]
        self._at_work[role] = made
        return list(made)

    def restart(self, remote: Remote) -> Remote:
        """A new thread with the same object."""
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
    """An object in a thread; what it is doing when it is stopped goes on unheard."""

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
        """Forget the object; whoever waits for it hears that it is lost."""
        with self.lock:
            left, self.open, self.stopped = self.open, set(), True
        self.waiting.put(None)
        for answer in left:
            with suppress(Exception):  # it was answered in this very moment
                answer.set_exception(Lost(f"{self.role}: stopped"))

    def alive(self) -> bool:
        """Until it is stopped."""
        return not self.stopped

    def _work(self) -> None:
        try:
            self._serve()
        except SystemExit:
            self.stop()  # it ends the thread as it would end a process

    def _serve(self) -> None:
        made, broken = None, None
        try:
            made = self.make()
        except Exception as error:
            broken = said(error, self.role)
        while (one := self.waiting.get()) is not None and not self.stopped:
            method, args, kwargs, answer = one
            try:
                result, wrong = None if broken else getattr(made, method)(*args, **kwargs), broken
            except Exception as error:
                result, wrong = None, said(error, self.role)
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


def said(error: BaseException, role: str) -> StepError:
    """What an object raised, in its own words; an error that is none of posttrain's is named with its type."""
    return StepError(str(error) if isinstance(error, PosttrainError) else f"{role}: {type(error).__name__}: {error}")
