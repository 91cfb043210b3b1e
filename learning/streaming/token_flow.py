"""An engine whose completions come back by themselves: from a service beside the trainer, to whoever they are owed.

In real time a thread moves them. With a `pace` nothing runs beside the trainer: so many decode steps pass in the place
of an update, and whoever waits lets steps pass.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from learning.samples.engine_protocol import Generation, Request, Sampling
from learning.streaming.stream_source import Source
from schemas.errors import PosttrainError, StepError

POLL = 0.003
"""Seconds between two looks at what has ended."""
JUDGES = 256
"""Groups that may wait for their scores at the same time."""
Sink = Callable[[Generation], None]


class Flow:
    """What is owed, and the threads that bring it. `changed` guards everything; `owed` is by ticket and sample."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.version = 0
        self.interrupt = True
        """Whether what runs goes on under new weights; otherwise they wait until it has ended."""
        self.rolling = False
        """Whether services take new weights one after the other, and the trainer does not wait for them."""
        self.pace: int | None = None
        self.broken: PosttrainError | None = None
        self.changed = threading.Condition()
        self.owed: dict[tuple[int, int], Sink] = {}
        self.judges: ThreadPoolExecutor | None = None
        self._tickets = 0
        self._mover: threading.Thread | None = None
        self._closed = False

    def go(self, pace: int | None) -> None:
        """Everything goes on by itself from now on, or at a pace. Raises StepError where steps cannot be counted."""
        self.pace = pace
        if pace is not None:
            if not hasattr(self.source, "turn"):
                raise StepError(
                    "steps_per_update counts decode steps of generation in the step's own process, and this step has "
                    "processes for it: leave out `resources.rollout`, or steps_per_update"
                )
        elif self._mover is None:
            if hasattr(self.source, "start"):
                self.source.start()
            self.judges = ThreadPoolExecutor(JUDGES, thread_name_prefix="rewards")
            self._mover = threading.Thread(target=self._move, name="stream", daemon=True)
            self._mover.start()

    def ticket(self, sinks: dict[int, Sink]) -> int:
        """A ticket under which completions are owed, by sample."""
        self._tickets += 1
        self.owed |= {(self._tickets, sample): sink for sample, sink in sinks.items()}
        return self._tickets

    def until(self, condition: Callable[[], bool]) -> None:
        """Return when something is so. Raises StepError for what went wrong beside the trainer."""
        if self.pace is None:
            with self.changed:
                self.changed.wait_for(lambda: condition() or self.broken)
                self.check()
            return
        while not condition():
            if not self.turn():
                raise StepError("stream: nothing is under way that could end")

    def drain(self) -> None:
        """Return when nothing is owed."""
        self.until(lambda: not self.owed)

    @property
    def settled(self) -> bool:
        """Whether every service has the latest weights."""
        return getattr(self.source, "settled", True)

    def settle(self) -> None:
        """Return when that is so; what runs goes on meanwhile."""
        self.until(lambda: self.settled)

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Completions of the loop's other parts, beside those under way (after them where nothing may interrupt)."""
        if sampling.target is not None or sampling.window is not None:
            raise StepError("stream: a drive that asks ahead cannot go with parts that cut completions into windows")
        if self._mover is None and self.pace is None:
            self.go(None)
        if not self.interrupt:
            self.drain()
        self.settle()
        found: list[dict[int, Generation]] = [{} for _ in requests]
        with self.changed:
            made = [
                (self.ticket({r.first + i: partial(of.__setitem__, r.first + i) for i in range(r.n)}), r)
                for of, r in zip(found, requests, strict=True)
            ]
            self.source.submit(made, sampling)
        self.until(lambda: all(len(of) == r.n for of, r in zip(found, requests, strict=True)))
        return [[of[number] for number in sorted(of)] for of in found]

    def sync(self, version: int) -> None:
        """The policy has new weights: what runs goes on under them, or ends first where nothing may interrupt."""
        for _ in range(self.pace or 0):
            self.turn()
        if not self.interrupt:
            self.drain()
        self.settle()
        with self.changed:
            self.check()
            self.source.sync(version, **({"each": True} if self.rolling else {}))
            self.version = version

    def put_down(self) -> None:
        """Suspend everything; what ended in this very moment is taken as ended."""
        for ticket, made in (*self.source.collect(), *self.source.suspend(), *self.source.collect()):
            self.owed.pop((ticket, made.sample))(made)

    def turn(self) -> bool:
        """One decode step, and what ended with it; whether anything happened."""
        with self.changed:
            flown = self.source.turn()  # type: ignore[attr-defined] — `go` has looked
            return self._receive() or flown

    def close(self) -> None:
        """End the threads and the source; whoever waits for a reward no longer does."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        if self._mover is not None:
            self._mover.join()
        if self.judges is not None:
            self.judges.shutdown(wait=False, cancel_futures=True)
        self.source.close()

    def fail(self, error: BaseException) -> None:
        """Let the trainer know, at the latest when it next waits."""
        said = error if isinstance(error, PosttrainError) else StepError(f"stream: {type(error).__name__}: {error}")
        self.broken = self.broken or said
        self.changed.notify_all()

    def check(self) -> None:
        """Raise what went wrong."""
        if self.broken is not None:
            raise self.broken

    def _receive(self) -> bool:
        settled = self.settled
        made = self.source.collect()
        for ticket, one in made:
            self.owed.pop((ticket, one.sample))(one)
        if made or settled != self.settled:
            self.changed.notify_all()
        return bool(made)

    def _move(self) -> None:
        """Until it is closed: completions to those to whom they are owed, as they end."""
        pause = threading.Event()
        while not self._closed and self.broken is None:
            with self.changed:
                try:
                    moved = self._receive()
                except Exception as error:
                    self.fail(error)
                    return
            if not moved:
                pause.wait(POLL)
