"""Flight of the torch engine: completions come and go between two decode steps, and so may the weights.

What is suspended, or meets new weights, is put down as its tokens and taken up as a request that has begun: its prefix
is computed again by the weights that are there now, and the next token takes the next draw of its own stream. Nothing
cached survives a change of weights.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch

from learning.generation.engines.running import Decoding
from learning.generation.engines.slots import use_slot_attention
from learning.samples.engine_protocol import Generation, Request, Sampling

Finish = Literal["stop", "length", "suspended"]
FEWEST = 8
"""Slots of a flight that has just begun."""


class Source(Protocol):
    """What a flight needs of its engine."""

    version: int
    syncs: int
    """How often weights were replaced: a step back has a version that was there before."""
    model: torch.nn.Module

    def check(self, requests: list[Request], sampling: Sampling) -> None:
        """Raise StepError for a request that cannot be done."""
        ...


@dataclass
class Member:
    """One completion; its request as it is now holds in `begun` what was sampled under older weights."""

    ticket: int
    serial: int
    key: int
    """Number of the request; siblings that have no token yet share it, and their prompt."""
    place: int
    """Which of the request's completions."""
    sample: int
    """Random stream."""
    given: int
    """Tokens that had been begun when it was added."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)


class InFlight(Decoding):
    """The completions in flight; a sample's number is the seat where its tokens are written down."""

    mode = staticmethod(use_slot_attention)
    """The state in which the model decodes."""

    def __init__(self, engine: Source, sampling: Sampling, ends: tuple[int, ...], max_slots: int):
        self.engine, self.version, self.syncs, self.max_slots = engine, engine.version, engine.syncs, max_slots
        self.requests: dict[int, Request] = {}
        self.known: dict[int, list[int]] = {}
        self.queue: deque[Member] = deque()
        self.seated: dict[int, Member] = {}
        self.free = list(range(max_slots))
        self.over: list[int] = []
        self.begun = self.named = 0
        slots = (min(FEWEST, max_slots), sampling.max_new_tokens)
        plain = replace(sampling, target=None, window=None)
        super().__init__(engine.model, plain, ends, max_slots, slots, max_slots)

    @property
    def running(self) -> int:
        """Completions in slots and in the queue."""
        return len(self.queue) + len(self.seated)

    def add(self, ticket: int, request: Request) -> None:
        """Queue the completions of a request. Raises StepError for one that cannot be done."""
        self.engine.check([request], self.sampling)
        key = self._name(request)
        for place in range(request.n):
            self.queue.append(Member(ticket, self.begun, key, place, request.first + place, len(request.begun)))
            self.begun += 1

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """One token for all in slots; the completions that ended with it, in the order of their beginning."""
        if self.engine.syncs != self.syncs:
            self._renew()
        with self.mode(self.model):
            self._widen()
            if not self.fill():
                return []
            self.advance()
        seats, self.over = self.over, []
        ended = [(one.ticket, self._told(one, finish)) for one, finish in self._harvest(seats)]
        if ended:
            self._forget()
        return ended

    @torch.inference_mode()
    def suspend(self, tickets: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Take completions out, in the order of their beginning."""

        def meant(one: Member) -> bool:
            return tickets is None or one.ticket in tickets

        taken = self._take_out([seat for seat, one in self.seated.items() if meant(one)])
        taken += [one for one in self.queue if meant(one)]
        self.queue = deque(one for one in self.queue if not meant(one))
        self._forget()
        return [(one.ticket, self._told(one, "suspended")) for one in sorted(taken, key=lambda one: one.serial)]

    def _waiting(self) -> int:
        return len(self.queue)

    def _admit(self, number: int) -> None:
        members = [self.queue.popleft() for _ in range(number)]
        seats, self.free = self.free[:number], self.free[number:]
        self.seated.update(zip(seats, members, strict=True))
        self.stopped_N[self._tensor(seats)] = False
        self._start([(one.key, one.place) for one in members], seats)
        wanted = {one.key for one in list(self.queue)[:1]}
        self.prefilled = {key: prefix for key, prefix in self.prefilled.items() if key in wanted}

    def _end(self, ended_B: torch.Tensor, stopped_B: torch.Tensor) -> None:
        self.over += self.sample_B[ended_B].tolist()
        super()._end(ended_B, stopped_B)

    def _widen(self) -> None:
        """Slots and columns for what waits."""
        if not self.queue:
            return
        used = len(self.seated) + len(self.queue)
        slots = self.num_slots if used <= self.num_slots else min(self.max_slots, max(used, 2 * self.num_slots))
        longest = max(len(self.requests[one.key].prompt_ids) for one in self.queue) + self.sampling.max_new_tokens
        if slots > self.num_slots or longest > self.slots.num_columns:
            self.slots.grow(slots, max(longest, self.slots.num_columns))
            self.num_slots = slots

    def _renew(self) -> None:
        """Put down everything that runs; it waits, before all else, to go on under the new weights."""
        members = self._take_out(list(self.seated))
        self.prefilled, self.version, self.syncs = {}, self.engine.version, self.engine.syncs
        for one in sorted(members, key=lambda one: one.serial, reverse=True):
            request = self.requests[one.key]
            begun = (*request.begun[: one.given], *one.ids)
            one.key, one.place = self._name(replace(request, n=1, first=one.sample, begun=begun)), 0
            self.queue.appendleft(one)
        self._forget()

    def _name(self, request: Request) -> int:
        """A number for a request."""
        self.named += 1
        self.requests[self.named], self.known[self.named] = request, [*request.prompt_ids, *request.begun]
        return self.named

    def _forget(self) -> None:
        """Drop the requests that no completion is of any more."""
        kept = {one.key for one in (*self.seated.values(), *self.queue)}
        self.requests = {key: request for key, request in self.requests.items() if key in kept}
        self.known = {key: ids for key, ids in self.known.items() if key in kept}
        self.prefilled = {key: prefix for key, prefix in self.prefilled.items() if key in kept}

    def _take_out(self, seats: list[int]) -> list[Member]:
        """Empty the slots of some, and write down what they have."""
        if not seats:
            return []
        live_B = self.sample_B < self.void
        self.length_N[self.sample_B[live_B]] = self.count_B[live_B]
        members = [one for one, _ in self._harvest(seats)]
        self._vacate(torch.isin(self.sample_B, self._tensor(seats)))
        return members

    def _harvest(self, seats: list[int]) -> list[tuple[Member, Finish]]:
        """Completions with what their seats hold, and how they ended, in the order of their beginning."""
        if not seats:
            return []
        at_X, made = self._tensor(seats), []
        columns = (self.length_N, self.stopped_N, self.tokens_NK, self.logprobs_NK, self.entropies_NK)
        for seat, length, stopped, *written in zip(seats, *(c[at_X].tolist() for c in columns), strict=True):
            one = self.seated.pop(seat)
            new = slice(len(self.requests[one.key].begun), length)
            for held, row in zip((one.ids, one.logprobs, one.entropies), written, strict=True):
                held += row[new]
            if length > new.start:
                one.versions.append((self.version, length - new.start))
            made.append((one, self._finish(length, stopped)))
        self.free += seats
        return sorted(made, key=lambda pair: pair[0].serial)

    @staticmethod
    def _told(one: Member, finish: Finish) -> Generation:
        return Generation(one.ids, one.logprobs, finish, one.entropies, one.versions, sample=one.sample)
