"""Adapt an engine to a source of completions that episodes advance turn by turn."""

from dataclasses import replace
from typing import Any

from learning.generation.services.rollout_service import Ended, RolloutService
from learning.generation.services.row_streams import Streaming
from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Generation, Request, Sampling


class BatchSource:
    """A source over an engine that is called for batches: a turn is a call for all waiting requests."""

    def __init__(self, engine: EngineProtocol) -> None:
        self.engine = engine
        self.waiting: list[tuple[int, Request, Sampling]] = []
        self.outbox: list[Ended] = []

    def submit(self, requests: list[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests."""
        self.waiting += [(ticket, request, sampling) for ticket, request in requests]

    def turn(self) -> bool:
        """Sample all waiting requests; return whether there were any."""
        waiting, self.waiting = self.waiting, []
        groups: dict[Sampling, list[tuple[int, Request]]] = {}
        for ticket, request, sampling in waiting:
            most = sampling.max_new_tokens
            limit = most if request.limit is None else min(most, request.limit)
            groups.setdefault(replace(sampling, max_new_tokens=limit), []).append((ticket, request))
        for sampling, batch in groups.items():
            results = self.engine.generate([replace(request, limit=None) for _, request in batch], sampling)
            for (ticket, request), generations in zip(batch, results, strict=True):
                for place, generation in enumerate(generations):
                    is_cut = generation.finish == "length" and request.limit is not None
                    is_full = sampling.max_new_tokens == _find_limit(waiting, ticket)
                    finish = "suspended" if is_cut and not is_full else generation.finish
                    self.outbox.append((ticket, replace(generation, finish=finish, sample=request.first + place)))
        return bool(waiting)

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """Return completions that have ended."""
        ended, self.outbox = self.outbox, []
        return ended

    def suspend(self) -> list[Ended]:
        """Take out and return the waiting completions."""
        waiting, self.waiting = self.waiting, []
        return [
            (ticket, Generation([], [], "suspended", sample=request.first + place))
            for ticket, request, _ in waiting
            for place in range(request.n)
        ]


def _find_limit(waiting: list[tuple[int, Request, Sampling]], ticket: int) -> int:
    return next(sampling.max_new_tokens for name, _, sampling in waiting if name == ticket)


def make_source(engine: Any) -> Any:
    """Return the engine itself if it runs continuously, else a source that is advanced turn by turn."""
    if isinstance(engine, Streaming) or hasattr(engine, "collect"):
        return engine
    return RolloutService(engine, lambda receipt: None) if isinstance(engine, FlyingEngine) else BatchSource(engine)
