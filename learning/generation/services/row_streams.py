"""Stream completions as they end, from any engine: replicas, a stepwise engine, or one that is called for a batch.

Requests are taken from an iterator as capacity is free, so that they are never all in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Generation, Request, Sampling

Ended = tuple[int, Generation]
"""A completion with the ticket of its request."""
UNDER_WAY = 512
"""Concurrent completions in a stepwise engine."""
PER_CALL = 4096
"""Completions per call of an engine that is called for a batch."""


@runtime_checkable
class Streaming(Protocol):
    """An engine that accepts requests while others are running, such as `Replicas`."""

    @property
    def capacity(self) -> int:
        """Return the maximum number of concurrent completions."""
        ...

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets."""
        ...

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Return completions that have ended."""
        ...


def stream_completions(
    engine: EngineProtocol, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    """Yield every completion of the requests once, in lists as they end; `sample` is its index in the request."""
    if isinstance(engine, Streaming):
        yield from _stream_submitted(engine, requests, sampling)
    elif isinstance(engine, FlyingEngine):
        yield from _stream_stepwise(engine, requests, sampling)
    else:
        yield from _stream_batches(engine, requests, sampling)


def _take_requests(requests: Iterator[tuple[int, Request]], capacity: int) -> list[tuple[int, Request]]:
    """Return the next requests for about `capacity` completions; at least one if `capacity` is above 0."""
    taken: list[tuple[int, Request]] = []
    while capacity > 0 and (batch := list(islice(requests, 1))):
        taken += batch
        capacity -= batch[0][1].n
    return taken


def _stream_submitted(
    engine: Any, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    """Submit twice the capacity, so that a replica with free slots does not wait for this process."""
    under_way, limit = 0, 2 * engine.capacity
    while True:
        if batch := _take_requests(requests, limit - under_way):
            engine.submit(batch, sampling)
            under_way += sum(request.n for _, request in batch)
        if not under_way:
            return
        ended = engine.collect(1.0)
        under_way -= len(ended)
        if ended:
            yield ended


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
            if ended := flight.step():
                yield ended
    finally:
        flight.suspend()


def _stream_batches(
    engine: EngineProtocol, requests: Iterator[tuple[int, Request]], sampling: Sampling
) -> Iterator[list[Ended]]:
    while batch := _take_requests(requests, PER_CALL):
        generations = engine.generate([request for _, request in batch], sampling)
        yield [
            (ticket, replace(generation, sample=request.first + i))
            for (ticket, request), of_request in zip(batch, generations, strict=True)
            for i, generation in enumerate(of_request)
        ]
