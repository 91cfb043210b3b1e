"""What runs in a rollout worker: a policy loaded from its folder, an engine over it, and the service that clients ask.

An engine that generates step by step runs in a `RolloutService`; one that can only be called, as a client of a server
elsewhere, in `Calls`.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from learning.engines.protocol import EngineProtocol, Generation, Request, Sampling
from schemas.errors import StepError


class Calls:
    """A service over an engine that samples a whole batch per call: what is queued is sampled when it is asked for."""

    def __init__(self, engine: EngineProtocol) -> None:
        self.engine = engine
        self.queued: list[tuple[int, Request, Sampling]] = []
        self.tokens, self.calls = 0, 0

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests."""
        self.queued += [(ticket, request, sampling) for ticket, request in requests]

    def collect(self, wait_s: float = 0.0) -> list[tuple[int, Generation]]:
        """Completions of all that is queued with the first one's sampling; the engine takes the time it takes."""
        if not self.queued:
            time.sleep(wait_s)
            return []
        sampling = self.queued[0][2]
        now = [(ticket, request) for ticket, request, other in self.queued if other == sampling]
        self.queued = [one for one in self.queued if one[2] != sampling]
        made = self.engine.generate([request for _, request in now], sampling)
        self.calls += 1
        self.tokens += sum(len(one.token_ids) for of in made for one in of)
        return [
            (ticket, replace(one, sample=request.first + i))
            for (ticket, request), of in zip(now, made, strict=True)
            for i, one in enumerate(of)
        ]

    def suspend(self) -> list[tuple[int, Generation]]:
        """What is queued was never begun."""
        queued, self.queued = self.queued, []
        return [
            (ticket, Generation([], [], "suspended", sample=request.first + i))
            for ticket, request, _ in queued
            for i in range(request.n)
        ]

    def load(self, receipt: Any) -> None:
        """Raises StepError: the weights of this engine are not the trainer's to give."""
        raise StepError(f"{type(self.engine).__module__}: the weights of this engine cannot be replaced")

    def stats(self) -> dict[str, float]:
        """Tokens and calls so far."""
        return {"tokens": self.tokens, "calls": self.calls}
