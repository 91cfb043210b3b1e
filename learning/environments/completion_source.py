"""What episodes are sampled with: an engine made into a source of completions that is moved on turn by turn."""

from dataclasses import replace
from typing import Any

from learning.generation.services.rollout_service import Ended, RolloutService
from learning.generation.services.row_streams import Streaming
from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Generation, Request, Sampling


class BatchSource:
    """An engine that is called for a batch: a turn is a call for everything that waits."""

    def __init__(self, engine: EngineProtocol) -> None:
        self.engine = engine
        self.waiting: list[tuple[int, Request, Sampling]] = []
        self.outbox: list[Ended] = []

    def submit(self, requests: list[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests."""
        self.waiting += [(ticket, request, sampling) for ticket, request in requests]

    def turn(self) -> bool:
        """Sample everything that waits; False when nothing does."""
        waiting, self.waiting = self.waiting, []
        groups: dict[Sampling, list[tuple[int, Request]]] = {}
        for ticket, request, sampling in waiting:
            most = sampling.max_new_tokens
            limit = most if request.limit is None else min(most, request.limit)
            groups.setdefault(replace(sampling, max_new_tokens=limit), []).append((ticket, request))
        for sampling, some in groups.items():
            made = self.engine.generate([replace(request, limit=None) for _, request in some], sampling)
            for (ticket, request), of in zip(some, made, strict=True):
                for place, one in enumerate(of):
                    cut = one.finish == "length" and request.limit is not None
                    whole = sampling.max_new_tokens == _find_limit(waiting, ticket)
                    finish = "suspended" if cut and not whole else one.finish
                    self.outbox.append((ticket, replace(one, finish=finish, sample=request.first + place)))
        return bool(waiting)

    def collect(self, wait_s: float = 0.0) -> list[Ended]:
        """What has ended."""
        made, self.outbox = self.outbox, []
        return made

    def suspend(self) -> list[Ended]:
        """Take out what waits."""
        waiting, self.waiting = self.waiting, []
        return [
            (ticket, Generation([], [], "suspended", sample=request.first + place))
            for ticket, request, _ in waiting
            for place in range(request.n)
        ]


def _find_limit(waiting: list[tuple[int, Request, Sampling]], ticket: int) -> int:
    return next(sampling.max_new_tokens for name, _, sampling in waiting if name == ticket)


def make_source(engine: Any) -> Any:
    """Where completions of an engine come from: itself, where they come by themselves; otherwise turn by turn."""
    if isinstance(engine, Streaming) or hasattr(engine, "collect"):
        return engine
    return RolloutService(engine, lambda receipt: None) if isinstance(engine, FlyingEngine) else BatchSource(engine)
