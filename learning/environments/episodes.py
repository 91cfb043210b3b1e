"""Episodes: an engine whose completions are several turns of the model, with an environment's answers in between.

A turn of the model ends with its end token. The environment is given its text; what it answers is laid out as the chat
template lays out a message, up to where the model's next turn begins, and the completion goes on after it. So a
completion is one text to everything else, with some tokens in it that nobody sampled (`Generation.turns`).

`Episodes` wraps an engine, or a source of completions beside a trainer (`asynchrony.stream_source`), and is the same to
its caller. Random streams belong to requests, so that what an episode becomes does not depend on which answers come
first. One that is suspended, by a window or a checkpoint, is begun anew and given its turns again.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from learning.data.chat import decode, encode_reply, find_turn_end, find_turn_ends
from learning.environments.answer_order import PendingAnswers
from learning.environments.clock import Answer, Clock, ThreadClock
from learning.environments.completion_source import make_source
from learning.environments.episode import Episode
from learning.environments.flight import EpisodesInFlight
from learning.environments.protocol import EnvironmentProtocol
from learning.generation.services.rollout_service import Ended
from learning.samples.engine_protocol import Flight, Generation, Request, Sampling, Turn
from schemas.errors import StepError

CAPACITY = 256
"""Episodes under way at once, where an engine does not say."""
LOOK = 0.003
"""Seconds between two looks at what has ended, in real time."""


class Episodes:
    """Completions in an environment.

    `order`: an episode goes on as soon as its own answer is there (`each`), or all wait for the slowest of the turn
    (`together`). `steps_per_answer`: with `each`, decode steps from the end of a turn to its answer, whatever it took
    in fact, so that runs are equal to the bit; None: as soon as it is there. `clock` None: `workers` threads.
    """

    def __init__(
        self,
        engine: Any,
        environment: EnvironmentProtocol,
        *,
        tokenizer: Any,
        max_turns: int = 8,
        workers: int = 8,
        order: Literal["each", "together"] = "each",
        steps_per_answer: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.engine, self.environment, self.tokenizer = engine, environment, tokenizer
        self.max_turns = max_turns
        self.clock: Clock = clock or ThreadClock(workers)
        self.source = make_source(engine)
        self.live = self.source is engine
        """Whether completions come by themselves, in real time."""
        self.patience: float | None = None
        """Seconds that a decode step may wait where nothing is decoded; None: as long as it takes."""
        self.version = self.numbers = 0
        self.decoding: dict[tuple[int, int], Episode] = {}
        """By ticket of the source and sample."""
        self.answers: PendingAnswers[Episode] = PendingAnswers(self.clock, order, steps_per_answer)
        self.roomy: set[int] = set()
        """Lengths that were seen to have room for two turns."""
        self.outbox: list[Ended] = []

    @property
    def capacity(self) -> int:
        """Episodes that can be under way at once."""
        return getattr(self.engine, "capacity", getattr(self.engine, "max_slots", CAPACITY))

    @property
    def charges(self) -> bool:
        """Whether somebody else counts what is sampled."""
        return getattr(self.engine, "charges", False)

    @property
    def exact(self) -> bool:
        """Whether time is counted in decode steps."""
        return self.clock.exact

    def sync(self, version: int, **how: Any) -> None:
        """The policy's weights have changed; `how` is for the source."""
        self.version = version
        self.engine.sync(version, **how)

    def flight(self, sampling: Sampling) -> Flight:
        """Episodes that are moved on step by step, beside those of other flights."""
        how: dict[str, Any] = {"tokenizer": self.tokenizer, "max_turns": self.max_turns, "order": self.answers.order}
        how |= {"steps_per_answer": self.answers.steps_per_answer, "clock": self.clock.beside()}
        own = Episodes(self.engine, self.environment, **how)
        own.patience = self.clock.pause
        return EpisodesInFlight(own, sampling)

    @property
    def settled(self) -> bool:
        """Whether the source has the latest weights everywhere."""
        return getattr(self.engine, "settled", True)

    def stats(self) -> list[dict[str, float]]:
        """What the source tells of itself."""
        return self.source.stats()

    def close(self) -> None:
        """End the clock and the source."""
        self.clock.close()
        if hasattr(self.engine, "close"):
            self.engine.close()

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """For each request its `n` episodes; a window or a target counts their tokens, observed ones too."""
        if self.open:
            raise StepError("episodes: some that were submitted are under way; collect them first")
        window, most = sampling.window, sampling.max_new_tokens
        limits = [None if window is None else min(most, len(r.begun) + window) for r in requests]
        asked = [(i, replace(r, limit=limit)) for i, (r, limit) in enumerate(zip(requests, limits, strict=True))]
        wanted = sum(request.n for request in requests)
        target, ended, made = wanted if sampling.target is None else sampling.target, 0, []
        try:
            self.submit(asked, replace(sampling, window=None, target=None))
            while self.open and ended < target:
                some = self.collect(None)
                ended += sum(one.finish != "suspended" for _, one in some)
                made += some
            made += [*self.suspend(), *self.outbox]
        finally:
            self._clear()
        if getattr(self.engine, "sleeps", False):
            self.engine.sleep()
        found: list[dict[int, Generation]] = [{} for _ in requests]
        for ticket, one in made:
            found[ticket][one.sample] = one
        return [[of[number] for number in sorted(of)] for of in found]

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets. Raises StepError where a second turn could never begin."""
        if any(request.row is not None for _, request in requests):
            self._check_room(sampling.max_new_tokens)
        told: list[tuple[int, Request]] = []
        for ticket, request in requests:
            some = [self._begin(ticket, request, sampling, request.first + i) for i in range(request.n)]
            if some and request.row is not None and some[0].ended(find_turn_ends(self.tokenizer)):
                for one in some:
                    self._step(one)
            elif some:
                told.append((self._ticket(some), replace(request, row=None, turns=())))
        if told:
            self.source.submit(told, sampling)

    def collect(self, wait_s: float | None = 0.0) -> list[Ended]:
        """Episodes that have ended; waits up to so many seconds (None: as long as it takes) for the first one."""
        if self.live:
            self._watch(wait_s)
        elif wait_s is None or wait_s > 0:
            while not self.outbox and self.open:
                self.advance()
        made, self.outbox = self.outbox, []
        return made

    def suspend(self) -> list[Ended]:
        """Take everything out, in the order of its beginning; what has ended is left to `collect`.

        A turn that the environment has not answered is its last, and is answered when the episode is taken up again.
        """
        taken = self.answers.forget()
        for ticket, made in (*self.source.collect(), *self.source.suspend(), *self.source.collect()):
            one = self.decoding.pop((ticket, made.sample))
            one.take(made, self._version)
            if made.finish == "length" or (made.finish == "stop" and one.request.row is None):
                self._end(one, made.finish)
            else:
                taken.append(one)
        return [(one.ticket, one.generation("suspended")) for one in sorted(taken, key=lambda one: one.number)]

    def _clear(self) -> None:
        """Forget what an error has left under way."""
        waiting = self.answers.forget()
        if self.decoding or waiting:
            if self.source is self.engine:
                self.source.abort()
            else:
                self.source = make_source(self.engine)
        self.decoding, self.outbox = {}, []

    @property
    def open(self) -> int:
        """Episodes that have not been returned."""
        return len(self.decoding) + len(self.answers) + len(self.outbox)

    @property
    def _version(self) -> int:
        return getattr(self.engine, "version", self.version)

    def _begin(self, ticket: int, request: Request, sampling: Sampling, sample: int) -> Episode:
        self.numbers += 1
        return Episode(self.numbers, ticket, sample, request, sampling)

    def _ticket(self, some: list[Episode]) -> int:
        """A ticket of the source for siblings."""
        self.numbers += 1
        self.decoding |= {(self.numbers, one.sample): one for one in some}
        return self.numbers

    def _check_room(self, most: int) -> None:
        """A turn of one token, what the template puts around an empty answer, and a token of the next turn."""
        least = 2 + len(encode_reply(self.tokenizer, "")) if self.max_turns > 1 and most not in self.roomy else 0
        if most < least:
            raise StepError(
                f"env: max_completion_length {most} has no room for a second turn, which begins after {least - 1} "
                "tokens at the earliest: it counts all turns and answers of an episode; raise it, or set max_turns: 1"
            )
        self.roomy.add(most)

    def advance(self) -> None:
        """Take the answers that are due, then a decode step."""
        self._hear()
        if self.decoding:
            self.source.turn()
            self.answers.tick()
            self._receive()

    def _watch(self, wait_s: float | None) -> None:
        """Let what comes by itself come, until something has ended or the time is over."""
        began = time.perf_counter()
        while True:
            self._hear()
            self._receive()
            left = None if wait_s is None else wait_s - (time.perf_counter() - began)
            if self.outbox or not self.open or (left is not None and left <= 0):
                return
            pause = LOOK if left is None else min(LOOK, left)
            if self.decoding:
                self._receive(pause)
            else:
                self.answers.hear(pause)

    def _receive(self, wait_s: float = 0.0) -> None:
        for ticket, made in self.source.collect(wait_s):
            one = self.decoding.pop((ticket, made.sample))
            one.take(made, self._version)
            if made.finish == "stop" and one.request.row is not None:
                self._step(one)
            else:
                self._end(one, made.finish)

    def _step(self, one: Episode) -> None:
        """Have the environment carry out the turn that has ended."""
        parts = one.parts() if one.played is None else one.parts()[-1:]
        texts = [decode(self.tokenizer, list(part)) for part in parts]
        self.answers.ask(one, lambda: one.step(self.environment, texts))

    def _hear(self) -> None:
        """Go on with the episodes whose answers are taken now."""
        for one, answer in self.answers.take(idle=not self.decoding, live=self.live, patience=self.patience):
            self._answered(one, answer)

    def _answered(self, one: Episode, answer: Answer) -> None:
        """Lay out what the environment said, and go on, or end."""
        if answer.error is not None or answer.outcome is None:
            raise self._failure(one, answer.error) from answer.error
        said, sampled = answer.outcome, len(one.tail)
        turn = Turn(sampled, 0, float(said.reward), answer.seconds, said.ok, answer.measured)
        most = min(self.max_turns, (one.request.row or {}).get("max_turns", self.max_turns))
        if said.done or len(one.all_turns) + 1 >= most:
            one.turns.append(turn)
            return self._end(one, "stop" if said.done else "length")
        closed = one.tail[-1] in find_turn_ends(self.tokenizer)
        # A turn that ended with a stop sequence is closed for it.
        ids = [find_turn_end(self.tokenizer)] * (not closed) + encode_reply(self.tokenizer, said.observation)
        if len(one.begun) + len(ids) >= one.sampling.max_new_tokens:
            one.turns.append(turn)
            return self._end(one, "length")
        one.observe(ids, self._version)
        one.turns.append(replace(turn, observed=len(ids)))
        if len(one.begun) >= one.full:
            return self._end(one, "suspended")
        return self.source.submit([(self._ticket([one]), one.asked())], one.sampling)

    def _failure(self, one: Episode, error: Exception | None) -> StepError:
        if isinstance(error, StepError):
            return error
        name = type(self.environment).__module__.rpartition(".")[2]
        row = (one.request.row or {}).get("id")
        return StepError(f"env {name}: a step of the episode of {row} failed: {type(error).__name__}: {error}")

    def _end(self, one: Episode, finish: Literal["stop", "length", "suspended"]) -> None:
        self.outbox.append((one.ticket, one.generation(finish)))
