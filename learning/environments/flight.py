"""Stepwise generation of episodes, for a service that runs during training."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from learning.generation.services.rollout_service import Ended
from learning.samples.engine_protocol import Generation, Request, Sampling


class EpisodesInFlight:
    """Episodes with the same sampling options; a step uses the due answers and then decodes one step of all."""

    def __init__(self, own: Any, sampling: Sampling) -> None:
        self.own, self.sampling = own, sampling
        self.requests: dict[int, Request] = {}
        self.before: dict[tuple[int, int], Generation] = {}
        """Generations of episodes that were suspended while others were taken out."""

    @property
    def running(self) -> int:
        """Return the number of episodes that have not ended."""
        return self.own.open

    def add(self, ticket: int, request: Request) -> None:
        """Begin the `n` episodes of a request."""
        self.requests[ticket] = request
        self.own.submit([(ticket, request)], self.sampling)

    def step(self) -> list[Ended]:
        """Decode one step; return the episodes that ended."""
        self.own.advance()
        ended = [self._join(ticket, generation) for ticket, generation in self.own.collect()]
        if not self.own.open:
            self.requests = {}
        return ended

    def suspend(self, tickets: Collection[int] | None = None) -> list[Ended]:
        """Take out and return episodes in the order in which they began, and ended ones; the others continue."""
        joined = [self._join(ticket, generation) for ticket, generation in (*self.own.suspend(), *self.own.collect())]
        if tickets is None:
            self.requests = {}
            return joined
        continued = [(t, made) for t, made in joined if t not in tickets and made.finish == "suspended"]
        for ticket, made in continued:
            old = self.requests[ticket]
            begun, turns = (*old.begun, *made.token_ids), (*old.turns, *made.turns)
            self.before[ticket, made.sample] = made
            rest = replace(old, n=1, first=made.sample, begun=begun, turns=turns)
            self.own.submit([(ticket, rest)], self.sampling)
        return [(t, made) for t, made in joined if t in tickets or made.finish != "suspended"]

    def _join(self, ticket: int, made: Generation) -> Ended:
        """Return a generation together with the tokens before its suspension."""
        old = self.before.pop((ticket, made.sample), None)
        if old is None:
            return ticket, made
        names = ("token_ids", "logprobs", "entropies", "versions", "turns")
        return ticket, replace(made, **{name: [*getattr(old, name), *getattr(made, name)] for name in names})
