"""Completions as they end, from any engine: replicas, one that goes step by step, or one that is called for a batch.

Requests are taken from an iterator as there is room for them, so that a long list of them need never exist.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Generation, Request, Sampling

Ended = tuple[int, Generation]
"""A completion with the ticket of its request."""
UNDER_WAY = 512
"""Completions under way at a time in an engine that goes step by step."""
PER_CALL = 4096
"""Completions asked at once of an engine that is called for a batch."""


@runtime_checkable
class Streaming(Protocol):
    """An engine that takes requests while others are under way, as `Replicas` does."""

    @property
    def capacity(self) -> int:
        """Completions that can be under way at once."""
        ...

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Completions that have ended."""
        ...


def stream_completions(
    engine: EngineProtocol, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    """Every completion of the requests once, in lists as they end; `sample` of each says which it is of its request."""
    if isinstance(engine, Streaming):
        yield from _stream_submitted(engine, requests, sampling)
    elif isinstance(engine, FlyingEngine):
        yield from _stream_stepwise(engine, requests, sampling)
    else:
        yield from _stream_batches(engine, requests, sampling)


def _take_requests(requests: Iterator[tuple[int, Request]], room: int) -> list[tuple[int, Request]]:
    """The next requests, about as many as there is room for their completions; at least one, if there is any room."""
    found: list[tuple[int, Request]] = []
    while room > 0 and (some := list(islice(requests, 1))):
        found += some
        room -= some[0][1].n
    return found


def _stream_submitted(
    engine: Any, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    """Twice the capacity is submitted, so that a replica that has room need not wait for this process."""
    under_way, limit = 0, 2 * engine.capacity
    while True:
        if some := _take_requests(requests, limit - under_way):
            engine.submit(some, sampling)
            under_way += sum(request.n for _, request in some)
        if not under_way:
            return
        made = engine.collect(1.0)
        under_way -= len(made)
        if made:
            yield made


def _stream_stepwise(
    engine: FlyingEngine, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    flight = engine.flight(sampling)
    try:
        while True:
            for ticket, request in _take_requests(requests, UNDER_WAY - flight.running):
                flight.add(ticket, request)
            if not flight.running:
                return
            if made := flight.step():
                yield made
    finally:
        flight.suspend()


def _stream_batches(
    engine: EngineProtocol, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    while some := _take_requests(requests, PER_CALL):
        made = engine.generate([request for _, request in some], sampling)
        yield [
            (ticket, replace(one, sample=request.first + i))
            for (ticket, request), of in zip(some, made, strict=True)
            for i, one in enumerate(of)
        ]
