"""Flight of episodes: for a service that goes on beside the trainer, one decode step after the other."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from learning.generation.services.rollout_service import Ended
from learning.samples.engine_protocol import Generation, Request, Sampling


class EpisodesInFlight:
    """Episodes of one sampling; a step is a decode step of all, after the answers that are due."""

    def __init__(self, own: Any, sampling: Sampling) -> None:
        self.own, self.sampling = own, sampling
        self.requests: dict[int, Request] = {}
        self.before: dict[tuple[int, int], Generation] = {}
        """What there was of those that had to be put down while others were taken out."""

    @property
    def running(self) -> int:
        """Episodes that have not ended."""
        return self.own.open

    def add(self, ticket: int, request: Request) -> None:
        """Begin the `n` episodes of a request. Raises StepError."""
        self.requests[ticket] = request
        self.own.submit([(ticket, request)], self.sampling)

    def step(self) -> list[Ended]:
        """A decode step; the episodes that ended with it."""
        self.own.advance()
        made = [self._joined(*one) for one in self.own.collect()]
        if not self.own.open:
            self.requests = {}
        return made

    def suspend(self, tickets: Collection[int] | None = None) -> list[Ended]:
        """Take episodes out, in the order of their beginning; what has ended comes along. The others go on."""
        made = [self._joined(*one) for one in (*self.own.suspend(), *self.own.collect())]
        if tickets is None:
            self.requests = {}
            return made
        left = [(t, one) for t, one in made if t not in tickets and one.finish == "suspended"]
        for ticket, one in left:
            old = self.requests[ticket]
            how = {"begun": (*old.begun, *one.token_ids), "turns": (*old.turns, *one.turns)}
            self.before[ticket, one.sample] = one
            self.own.submit([(ticket, replace(old, n=1, first=one.sample, **how))], self.sampling)
        return [(t, one) for t, one in made if t in tickets or one.finish != "suspended"]

    def _joined(self, ticket: int, one: Generation) -> Ended:
        old = self.before.pop((ticket, one.sample), None)
        if old is None:
            return ticket, one
        names = ("token_ids", "logprobs", "entropies", "versions", "turns")
        return ticket, replace(one, **{name: [*getattr(old, name), *getattr(one, name)] for name in names})
