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

from learning.asynchrony.rollout_service import Ended
from learning.engines.protocol import Generation, Request, Sampling, Turn
from learning.environments.clock import Answer, Clock, Threads
from learning.environments.decoding import source_of
from learning.environments.episode import Episode
from learning.environments.protocol import EnvironmentProtocol
from learning.texts.chat import decode, encode_reply
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
        self.max_turns, self.order, self.steps_per_answer = max_turns, order, steps_per_answer
        self.clock: Clock = clock or Threads(workers)
        self.source = source_of(engine)
        self.live = self.source is engine and not hasattr(engine, "turn")
        """Whether completions come by themselves, in real time."""
        self.version = self.steps = self.numbers = 0
        self.decoding: dict[tuple[int, int], Episode] = {}
        """By ticket of the source and sample."""
        self.stepping: dict[int, tuple[Episode, int]] = {}
        """With an environment, by number of the step; each with the decode step at which its answer is due."""
        self.answers: dict[int, Answer] = {}
        """Those that are there and not due."""
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
    def turn(self) -> Any:
        """A decode step, where time is to be counted in them; there is none where completions come by themselves."""
        if not hasattr(self.source, "turn"):
            raise AttributeError("turn")
        return self._advance

    def start(self) -> None:
        """Go on by itself from now on, where there is something that can."""
        if hasattr(self.source, "start") and self.source is self.engine:
            if self.clock.exact:
                raise StepError(
                    "env: decode_seconds counts decode steps, this drive real time: give it steps_per_update"
                )
            self.source.start()
            self.live = True

    def sync(self, version: int, **how: Any) -> None:
        """The policy's weights have changed; `how` is for the source."""
        self.version = version
        self.engine.sync(version, **how)

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
            waiting = request.row is not None and self._whole(some[0].tail if some else ())
            if waiting:
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
        elif self.source is not self.engine and (wait_s is None or wait_s > 0):
            while not self.outbox and self.open:
                self._advance()
        made, self.outbox = self.outbox, []
        return made

    def suspend(self) -> list[Ended]:
        """Take everything out, in the order of its beginning; what has ended is left to `collect`.

        A turn that the environment has not answered is its last, and is answered when the episode is taken up again.
        """
        taken = [one for one, _ in self.stepping.values()]
        for ticket, made in (*self.source.collect(), *self.source.suspend(), *self.source.collect()):
            one = self.decoding.pop((ticket, made.sample))
            one.take(made, self.version)
            if made.finish == "length" or (made.finish == "stop" and one.request.row is None):
                self._end(one, made.finish)
            else:
                taken.append(one)
        self.stepping, self.answers = {}, {}
        self.clock.forget()
        return [(one.ticket, one.generation("suspended")) for one in sorted(taken, key=lambda one: one.number)]

    def _clear(self) -> None:
        """Forget what an error has left under way."""
        if self.decoding or self.stepping:
            self.clock.forget()
            if self.source is self.engine:
                self.source.abort()
            else:
                self.source = source_of(self.engine)
        self.decoding, self.stepping, self.answers, self.outbox = {}, {}, {}, []

    @property
    def open(self) -> int:
        """Episodes that have not been returned."""
        return len(self.decoding) + len(self.stepping) + len(self.outbox)

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

    def _whole(self, tail: tuple[int, ...]) -> bool:
        return tail[-1:] == (self.tokenizer.eos_token_id,)

    def _advance(self) -> bool:
        """Take the answers that are due, then a decode step; whether anything happened."""
        heard = self._hear()
        if not self.decoding:
            return heard
        flown = self.source.turn()
        self.steps += 1
        self.clock.tick()
        self._receive()
        return flown or heard

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
                self._keep(self.clock.collect(pause))

    def _receive(self, wait_s: float = 0.0) -> None:
        for ticket, made in self.source.collect(wait_s):
            one = self.decoding.pop((ticket, made.sample))
            one.take(made, self.version)
            if made.finish == "stop" and one.request.row is not None:
                self._step(one)
            else:
                self._end(one, made.finish)

    def _step(self, one: Episode) -> None:
        """Have the environment carry out the turn that has ended."""
        self.numbers += 1
        parts = one.parts() if one.played is None else one.parts()[-1:]
        texts = [decode(self.tokenizer, list(part)) for part in parts]
        self.stepping[self.numbers] = (one, self.steps + (self.steps_per_answer or 0))
        self.clock.submit(self.numbers, lambda: one.step(self.environment, texts))

    def _keep(self, answers: list[Answer]) -> None:
        self.answers |= {answer.number: answer for answer in answers if answer.number in self.stepping}

    def _hear(self) -> bool:
        """Go on with the episodes whose answers are due; whether there were any."""
        due = self._due()
        for number in due:
            one, _ = self.stepping.pop(number)
            self._answered(one, self.answers.pop(number))
        return bool(due)

    def _due(self) -> list[int]:
        """Steps whose answers are taken now, in order; those that must be there are waited for."""
        if not self.stepping:
            return []
        idle = not self.decoding
        stepped = self.source is self.engine and hasattr(self.source, "turn") and not self.clock.exact
        counted = self.steps_per_answer is not None or stepped
        self._keep(self.clock.collect())
        if self.order == "together":
            if not idle or (self.live and len(self.answers) < len(self.stepping)):
                return []
            due = list(self.stepping)
        elif self.live or not counted:
            if idle and not self.answers and not self.live:
                self._keep(self.clock.collect(None))
            due = list(self.answers)
        else:
            now = min(at for _, at in self.stepping.values()) if idle else self.steps
            due = [number for number, (_, at) in self.stepping.items() if at <= now]
        while not self.answers.keys() >= set(due):
            self._keep(self.clock.collect(None))
        return sorted(due)

    def _answered(self, one: Episode, answer: Answer) -> None:
        """Lay out what the environment said, and go on, or end."""
        if answer.error is not None or answer.outcome is None:
            raise self._failure(one, answer.error) from answer.error
        said, sampled = answer.outcome, len(one.tail)
        turn = Turn(sampled, 0, float(said.reward), answer.seconds, said.ok, answer.measured)
        if said.done or len(one.all_turns) + 1 >= self.max_turns:
            one.turns.append(turn)
            return self._end(one, "stop" if said.done else "length")
        ids = encode_reply(self.tokenizer, said.observation)
        if len(one.begun) + len(ids) >= one.sampling.max_new_tokens:
            one.turns.append(turn)
            return self._end(one, "length")
        one.observe(ids, self.version)
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
