"""Stepwise generation with the torch engine: completions and weights may change between two decode steps.

A completion that is suspended, or runs while weights change, is reduced to its tokens and continued as a request that
has begun: its prefix is computed again by the current weights, and the next token takes the next number of its own
random stream. No cache survives a change of weights. A turn
of an episode leaves its keys and values for the next one, unless completions are suspended or weights change meanwhile.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch

from learning.generation.engines.kept_turns import KeptTurn, KeptTurns, extend
from learning.generation.engines.running import PREFILL_TOKENS, Decoding, Prefilled
from learning.generation.engines.slot_attention import extends_turns, use_slot_attention
from learning.samples.engine_protocol import Generation, Request, Sampling

Finish = Literal["stop", "length", "suspended"]
FEWEST = 8
"""Initial slots of a flight."""


class Source(Protocol):
    """The attributes and methods of an engine that a flight uses."""

    version: int
    syncs: int
    """How often weights were replaced; unlike the version, it rises also if an older version is restored."""

    @property
    def model(self) -> torch.nn.Module:
        """The model that samples."""
        ...

    def check(self, requests: list[Request], sampling: Sampling) -> None:
        """Raise StepError if a request cannot be sampled."""
        ...


@dataclass
class Member:
    """One completion; `begun` of its current request holds the tokens sampled under older weights."""

    ticket: int
    serial: int
    key: int
    """Number of the request, shared by completions of one prompt that have no token yet."""
    place: int
    """Index among the request's completions."""
    sample: int
    """Random stream."""
    given: int
    """Tokens that had begun when it was added."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class InFlight(Decoding):
    """The completions in flight; a sample's number is the seat where its tokens are stored."""

    mode = staticmethod(use_slot_attention)
    """Context manager that prepares the model for decoding."""
    caches = True
    """Whether slots hold keys and values, which a turn may leave for the next one."""

    def __init__(self, engine: Source, sampling: Sampling, ends: tuple[int, ...], max_slots: int):
        self.engine, self.version, self.syncs, self.max_slots = engine, engine.version, engine.syncs, max_slots
        self.requests: dict[int, Request] = {}
        self.known: dict[int, list[int]] = {}
        self.queue: deque[Member] = deque()
        self.seated: dict[int, Member] = {}
        self.free = list(range(max_slots))
        self.over: list[int] = []
        self.kept = KeptTurns(max_slots)
        self.left: dict[int, int] = {}
        """The row of each seat whose completion ended in this step."""
        self.begun = self.named = 0
        slots = (min(FEWEST, max_slots), sampling.max_new_tokens)
        plain = replace(sampling, target=None, window=None)
        super().__init__(engine.model, plain, ends, max_slots, slots, max_slots)

    @property
    def running(self) -> int:
        """Return the number of completions in slots and in the queue."""
        return len(self.queue) + len(self.seated)

    def add(self, ticket: int, request: Request) -> None:
        """Queue the completions of a request; raise StepError if it cannot be sampled."""
        self.engine.check([request], self.sampling)
        key = self._register(request)
        for place in range(request.n):
            self.queue.append(Member(ticket, self.begun, key, place, request.first + place, len(request.begun)))
            self.begun += 1

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Generation]]:
        """Decode one token for every slot; return the completions that ended, in the order in which they began."""
        if self.engine.syncs != self.syncs:
            self._renew()
        with self.mode(self.model):
            self._widen()
            if not self.fill():
                return []
            self.advance()
        seats, self.over = self.over, []
        ended = [(member.ticket, self._make_generation(member, finish)) for member, finish in self._collect(seats)]
        if ended:
            self._forget_unused()
        return ended

    @torch.inference_mode()
    def suspend(self, tickets: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Take completions out (None: all) and return them, in the order in which they began."""

        def matches(member: Member) -> bool:
            return tickets is None or member.ticket in tickets

        removed = self._take_out([seat for seat, member in self.seated.items() if matches(member)])
        removed += [member for member in self.queue if matches(member)]
        self.queue = deque(member for member in self.queue if not matches(member))
        self._forget_unused()
        self.kept.clear()  # a suspended episode that is resumed elsewhere computes all its tokens; so does this one
        removed.sort(key=lambda member: member.serial)
        return [(member.ticket, self._make_generation(member, "suspended")) for member in removed]

    def _waiting(self) -> int:
        return len(self.queue)

    def _admit(self, number: int) -> None:
        members = [self.queue.popleft() for _ in range(number)]
        seats, self.free = self.free[:number], self.free[number:]
        self.seated.update(zip(seats, members, strict=True))
        self.stopped_N[self._tensor(seats)] = False
        self._start([(member.key, member.place) for member in members], seats)
        next_keys = {member.key for member in list(self.queue)[:1]}
        self.prefilled = {key: prefix for key, prefix in self.prefilled.items() if key in next_keys}

    def _end(self, ended_B: torch.Tensor, stopped_B: torch.Tensor) -> None:
        seats = self.sample_B[ended_B].tolist()
        self.over += seats
        self.left |= dict(zip(seats, ended_B.nonzero()[:, 0].tolist(), strict=True))
        super()._end(ended_B, stopped_B)

    def _widen(self) -> None:
        """Make room for waiting completions: more slots and columns."""
        if not self.queue:
            return
        used = len(self.seated) + len(self.queue)
        slots = self.num_slots if used <= self.num_slots else min(self.max_slots, max(used, 2 * self.num_slots))
        longest_prompt = max(len(self.requests[member.key].prompt_ids) for member in self.queue)
        longest = longest_prompt + self.sampling.max_new_tokens
        self.slots.grow(slots, longest)
        self.num_slots = slots

    def _renew(self) -> None:
        """Move every running completion to the front of the queue, to continue under the new weights."""
        members = self._take_out(list(self.seated))
        self.prefilled, self.version, self.syncs = {}, self.engine.version, self.engine.syncs
        self.kept.clear()
        for member in sorted(members, key=lambda member: member.serial, reverse=True):
            request = self.requests[member.key]
            begun = (*request.begun[: member.given], *member.ids)
            member.key, member.place = self._register(replace(request, n=1, first=member.sample, begun=begun)), 0
            self.queue.appendleft(member)
        self._forget_unused()

    def _register(self, request: Request) -> int:
        """Store a request under a new number, and return the number."""
        self.named += 1
        self.requests[self.named], self.known[self.named] = request, [*request.prompt_ids, *request.begun]
        return self.named

    def _forget_unused(self) -> None:
        """Drop requests without a running or waiting completion."""
        used = {member.key for member in (*self.seated.values(), *self.queue)}
        self.requests = {key: request for key, request in self.requests.items() if key in used}
        self.known = {key: ids for key, ids in self.known.items() if key in used}
        self.prefilled = {key: prefix for key, prefix in self.prefilled.items() if key in used}

    def _take_out(self, seats: list[int]) -> list[Member]:
        """Empty the slots of some seats, and return their completions with the tokens so far."""
        if not seats:
            return []
        live_B = self.sample_B < self.void
        self.length_N[self.sample_B[live_B]] = self.count_B[live_B]
        members = [member for member, _ in self._collect(seats)]
        self._vacate(torch.isin(self.sample_B, self._tensor(seats)))
        return members

    def _collect(self, seats: list[int]) -> list[tuple[Member, Finish]]:
        """Return the completions of seats with their tokens and finish reasons, in the order in which they began."""
        if not seats:
            return []
        at_X, collected = self._tensor(seats), []
        columns = (self.length_N, self.stopped_N, self.tokens_NK, self.logprobs_NK, self.entropies_NK)
        for seat, length, stopped, *rows in zip(seats, *(c[at_X].tolist() for c in columns), strict=True):
            member = self.seated.pop(seat)
            new = slice(len(self.requests[member.key].begun), length)
            for values, row in zip((member.ids, member.logprobs, member.entropies), rows, strict=True):
                values += row[new]
            member.kept += self.kept_NK[seat][new]
            if length > new.start:
                member.versions.append((self.version, length - new.start))
            collected.append((member, self._finish(length, stopped)))
            row = self.left.pop(seat, None)
            if row is not None and stopped and self.caches and self.requests[member.key].continues:
                self._keep(member, rows[0][:length], row)
        self.free += seats
        return sorted(collected, key=lambda pair: pair[0].serial)

    def _keep(self, member: Member, tokens: list[int], row: int) -> None:
        """Keep the keys and values of a turn that ended: all but those of its last token, which were never computed."""
        if not extends_turns(self.model):
            return
        request = self.requests[member.key]
        ids = [*request.prompt_ids, *tokens][:-1]
        self.kept.keep((request.seed, member.sample), KeptTurn(ids, self.slots.copy_row(row, len(ids))))

    def _prefill(self, numbers: list[int]) -> None:
        """Compute the known tokens of requests except the last one; those of a kept turn are there already."""
        kept: dict[int, KeptTurn] = {}
        for number in numbers:
            request = self.requests[number]
            turn = self.kept.take((request.seed, request.first), self.known[number][:-1]) if request.n == 1 else None
            if turn is not None:
                kept[number] = turn
        super()._prefill([number for number in numbers if number not in kept])
        ordered = sorted(kept, key=lambda number: len(self.known[number]))
        while ordered:
            take = max(1, min(len(ordered), PREFILL_TOKENS // len(self.known[ordered[-1]])))
            batch, ordered = ordered[:take], ordered[take:]
            new = [self.known[number][len(kept[number].ids) : -1] for number in batch]
            prefix = extend(self.model, [kept[number] for number in batch], new)
            self.prefilled.update({number: Prefilled(prefix, row) for row, number in enumerate(batch)})

    @staticmethod
    def _make_generation(member: Member, finish: Finish) -> Generation:
        own = (member.ids, member.logprobs, finish, member.entropies, member.versions)
        return Generation(*own, sample=member.sample, kept=member.kept)
