"""Episodes: an engine whose completions consist of several turns of the model with an environment's answers in between.

A turn of the model ends with its end token. The environment receives its text; its answer is formatted as a message by
the chat template, up to the beginning of the model's next turn, and the completion continues after it. For all other
code a completion is one text with some tokens that were not sampled (`Generation.turns`).

`Episodes` wraps an engine, or a source of completions of an asynchronous rollout, with the same interface. Random
streams belong to requests, so that an episode does not depend on the order of answers. A suspended episode (by a window
or a checkpoint) is restarted and replays its turns.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from learning.data.chat import decode, encode_prompt, encode_reply, encode_text, find_turn_end, find_turn_ends
from learning.environments.answer_order import PendingAnswers
from learning.environments.clock import Answer, Clock, ThreadClock
from learning.environments.completion_source import make_source
from learning.environments.episode import Episode, limit_request
from learning.environments.flight import EpisodesInFlight
from learning.environments.protocol import EnvironmentProtocol, NextContext, Outcome
from learning.generation.services.rollout_service import Ended
from learning.lookup import Bound
from learning.samples.engine_protocol import Flight, Generation, Request, Sampling, Turn, hash_name
from schemas.errors import StepError
from schemas.use import Inline

CAPACITY = 256
"""Concurrent episodes, for engines without a capacity."""
LOOK = 0.003
"""Seconds between polls for ended completions, in real time."""


class Episodes:
    """An engine whose completions are episodes in an environment.

    `order`: an episode continues when its own answer has arrived (`each`), or all wait for the slowest of the turn
    (`together`). `steps_per_answer`: with `each`, the decode steps from the end of a turn to its answer, whatever its
    real duration, so that runs are bit-identical; None: as soon as it arrives. `clock` None: `workers` threads.
    `context`: a context policy (`learning.environments.context_policies`); None: every turn sees all before it.
    `inline`: answers continue the model's message behind a stop text; None: they are messages of the user. A context
    that leaves no room for `max_completion_length` within `max_length` tokens ends its episode.
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
        context: Bound | None = None,
        max_length: int | None = None,
        inline: Inline | None = None,
    ) -> None:
        self.engine, self.environment, self.tokenizer = engine, environment, tokenizer
        self.max_turns = max_turns
        self.context, self.max_length, self.inline = context, max_length, inline
        self.stops = tuple(tuple(encode_text(tokenizer, text)) for text in inline.stop) if inline else ()
        """Sequences of tokens that end a turn besides the end tokens."""
        self.clock: Clock = clock or ThreadClock(workers)
        self.source = make_source(engine)
        self.live = self.source is engine
        """Whether the source runs continuously, in real time."""
        self.patience: float | None = None
        """Seconds that a decode step may wait if nothing is decoded; None: without limit."""
        self.version = self.numbers = 0
        self.decoding: dict[tuple[int, int], Episode] = {}
        """Episodes being decoded, by ticket of the source and sample."""
        self.answers: PendingAnswers[Episode] = PendingAnswers(self.clock, order, steps_per_answer)
        self.roomy: set[int] = set()
        """Values of max_completion_length that were checked to fit two turns."""
        self.outbox: list[Ended] = []

    @property
    def capacity(self) -> int:
        """Return the maximum number of concurrent episodes."""
        return getattr(self.engine, "capacity", getattr(self.engine, "max_slots", CAPACITY))

    @property
    def charges(self) -> bool:
        """Return whether the engine's samples are paid by a server's bill."""
        return getattr(self.engine, "charges", False)

    @property
    def exact(self) -> bool:
        """Return whether time is counted in decode steps."""
        return self.clock.exact

    def sync(self, version: int, **how: Any) -> None:
        """Notify the engine that the policy's weights have changed."""
        self.version = version
        self.engine.sync(version, **how)

    def flight(self, sampling: Sampling) -> Flight:
        """Return a flight for stepwise generation, independent of other flights."""
        own = Episodes(
            self.engine,
            self.environment,
            tokenizer=self.tokenizer,
            max_turns=self.max_turns,
            order=self.answers.order,
            steps_per_answer=self.answers.steps_per_answer,
            clock=self.clock.share(),
            context=self.context,
            max_length=self.max_length,
            inline=self.inline,
        )
        own.patience = self.clock.pause
        return EpisodesInFlight(own, sampling)

    @property
    def settled(self) -> bool:
        """Return whether all of the source's replicas have the latest weights."""
        return getattr(self.engine, "settled", True)

    def stats(self) -> list[dict[str, float]]:
        """Return the source's statistics."""
        return self.source.stats()

    def close(self) -> None:
        """Close the clock and the engine."""
        self.clock.close()
        if hasattr(self.engine, "close"):
            self.engine.close()

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return `n` episodes of each request; a window or target counts sampled and observed tokens."""
        if self.open:
            raise StepError("episodes: submitted episodes are still running; collect them first")
        window = sampling.window
        limits = [None if window is None else len(r.begun) + window for r in requests]
        limited = [(i, replace(r, limit=limit)) for i, (r, limit) in enumerate(zip(requests, limits, strict=True))]
        target = sum(request.n for request in requests) if sampling.target is None else sampling.target
        ended, completions = 0, []
        try:
            self.submit(limited, replace(sampling, window=None, target=None))
            while self.open and ended < target:
                collected = self.collect(None)
                ended += sum(generation.finish != "suspended" for _, generation in collected)
                completions += collected
            completions += [*self.suspend(), *self.outbox]
        finally:
            self._clear()
        if getattr(self.engine, "sleeps", False):
            self.engine.sleep()
        results: list[dict[int, Generation]] = [{} for _ in requests]
        for ticket, generation in completions:
            results[ticket][generation.sample] = generation
        return [[of_request[number] for number in sorted(of_request)] for of_request in results]

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests under tickets; raise StepError if a completion cannot hold two turns."""
        sampling = replace(sampling, stop=(*sampling.stop, *self.stops))
        if any(request.row is not None for _, request in requests):
            self._check_room(sampling.max_new_tokens)
        to_decode: list[tuple[int, Request]] = []
        for ticket, request in requests:
            episodes = [self._begin(ticket, request, sampling, request.first + i) for i in range(request.n)]
            if episodes and request.row is not None and episodes[0].ended(find_turn_ends(self.tokenizer)):
                for episode in episodes:
                    self._step(episode)
            elif episodes and request.turns:
                to_decode += [(self._register([episode]), episode.make_request()) for episode in episodes]
            elif episodes:
                of_all = replace(request, row=None, continues=request.row is not None and self.max_turns > 1)
                of_all = limit_request(of_all, sampling.max_new_tokens)
                to_decode.append((self._register(episodes), of_all))
        if to_decode:
            self.source.submit(to_decode, sampling)

    def collect(self, wait_s: float | None = 0.0) -> list[Ended]:
        """Return ended episodes; wait up to `wait_s` seconds (None: without limit) for the first one."""
        if self.live:
            self._watch(wait_s)
        elif wait_s is None or wait_s > 0:
            while not self.outbox and self.open:
                self.advance()
        ended, self.outbox = self.outbox, []
        return ended

    def suspend(self) -> list[Ended]:
        """Take out and return all running episodes, in the order in which they began; `collect` returns ended ones.

        A turn without an answer is the last of its episode, and is answered when the episode is resumed.
        """
        forgotten = self.answers.forget()
        for ticket, generation in (*self.source.collect(), *self.source.suspend(), *self.source.collect()):
            episode = self.decoding.pop((ticket, generation.sample))
            episode.take(generation, self._version)
            if generation.finish == "length" or (generation.finish == "stop" and episode.request.row is None):
                self._end(episode, generation.finish)
            else:
                forgotten.append(episode)
        forgotten.sort(key=lambda episode: episode.number)
        return [(episode.ticket, episode.make_generation("suspended")) for episode in forgotten]

    def _clear(self) -> None:
        """Drop everything that an error left running."""
        waiting = self.answers.forget()
        if self.decoding or waiting:
            if self.source is self.engine:
                self.source.abort()
            else:
                self.source = make_source(self.engine)
        self.decoding, self.outbox = {}, []

    @property
    def open(self) -> int:
        """Return the number of episodes that have not been returned."""
        return len(self.decoding) + len(self.answers) + len(self.outbox)

    @property
    def _version(self) -> int:
        return getattr(self.engine, "version", self.version)

    def _begin(self, ticket: int, request: Request, sampling: Sampling, sample: int) -> Episode:
        self.numbers += 1
        return Episode(self.numbers, ticket, sample, request, sampling)

    def _register(self, episodes: list[Episode]) -> int:
        """Return a new ticket of the source for episodes of one request."""
        self.numbers += 1
        self.decoding |= {(self.numbers, episode.sample): episode for episode in episodes}
        return self.numbers

    def _check_room(self, most: int) -> None:
        """Raise StepError unless a turn of one token, an empty answer and a token of the next turn fit."""
        least = 2 + len(encode_reply(self.tokenizer, "")) if self.max_turns > 1 and most not in self.roomy else 0
        if most < least:
            raise StepError(
                f"env: max_completion_length {most} has no room for a second turn, which begins after {least - 1} "
                "tokens at the earliest: it counts all turns and answers of an episode; raise it, or set max_turns: 1"
            )
        self.roomy.add(most)

    def advance(self) -> None:
        """Use the due answers, then decode one step."""
        self._use_answers()
        if self.decoding:
            self.source.turn()
            self.answers.tick()
            self._receive()

    def _watch(self, wait_s: float | None) -> None:
        """Poll a continuous source until an episode has ended or the time is over."""
        began = time.perf_counter()
        while True:
            self._use_answers()
            self._receive()
            left = None if wait_s is None else wait_s - (time.perf_counter() - began)
            if self.outbox or not self.open or (left is not None and left <= 0):
                return
            pause = LOOK if left is None else min(LOOK, left)
            if self.decoding:
                self._receive(pause)
            else:
                self.answers.collect(pause)

    def _receive(self, wait_s: float = 0.0) -> None:
        for ticket, generation in self.source.collect(wait_s):
            episode = self.decoding.pop((ticket, generation.sample))
            episode.take(generation, self._version)
            if generation.finish == "stop" and episode.request.row is not None:
                self._step(episode)
            else:
                self._end(episode, generation.finish)

    def _step(self, episode: Episode) -> None:
        """Send the finished turn to the environment."""
        texts = self._list_texts(episode)
        self.answers.ask(episode, lambda: episode.step(self.environment, texts))

    def _list_texts(self, episode: Episode) -> list[str]:
        """Return the texts of the turns so far, decoded once."""
        parts = episode.split_turns()
        if len(episode.texts) < len(parts):
            episode.texts += [decode(self.tokenizer, list(part)) for part in parts[len(episode.texts) :]]
        return list(episode.texts)

    def _use_answers(self) -> None:
        """Continue or end the episodes whose answers are due."""
        for episode, answer in self.answers.take(idle=not self.decoding, live=self.live, patience=self.patience):
            self._use_answer(episode, answer)

    def _use_answer(self, episode: Episode, answer: Answer) -> None:
        """Append the environment's answer, and continue or end the episode."""
        if answer.error is not None or answer.outcome is None:
            raise self._describe_failure(episode, answer.error) from answer.error
        outcome, sampled = answer.outcome, len(episode.tail)
        turn = Turn(
            sampled,
            reward=float(outcome.reward),
            seconds=answer.seconds,
            ok=outcome.ok,
            measured=answer.measured,
            state=episode.state,
            kind=hash_name(outcome.kind) if outcome.kind else 0,
            merit=float(outcome.merit),
        )
        most = min(self.max_turns, (episode.request.row or {}).get("max_turns", self.max_turns))
        if outcome.done or episode.actions + (not episode.writes_memory) >= most:
            episode.turns.append(turn)
            return self._end(episode, "stop" if outcome.done else "length")
        ids, turn = self._continue(episode, outcome, turn)
        if ids is None:
            episode.turns.append(turn)
            return self._end(episode, "length")
        episode.observe(ids, self._version)
        episode.turns.append(replace(turn, observed=len(ids)))
        if episode.full:
            return self._end(episode, "suspended")
        return self.source.submit([(self._register([episode]), episode.make_request())], episode.sampling)

    def _continue(self, episode: Episode, outcome: Outcome, turn: Turn) -> tuple[list[int] | None, Turn]:
        """Return the tokens up to the model's next turn, and the turn with what they are; None without room."""
        most, then = episode.sampling.max_new_tokens, NextContext()
        if self.context is not None:
            then = self._ask_context(episode)
        if then.ends:
            return None, turn
        if then.messages is not None:
            ids = encode_prompt(self.tokenizer, then.messages, episode.request.row)
            fits = self.max_length is None or len(ids) + most <= self.max_length
            return ids if fits else None, replace(turn, rebuilt=True, asks=then.asks) if fits else turn
        closed = episode.tail[-1] in find_turn_ends(self.tokenizer)
        message = outcome.observation if then.message is None else then.message
        if self.inline is not None and not closed:
            ids = encode_text(self.tokenizer, self.inline.text.replace("{observation}", message))
        else:
            # A turn that ended with a stop sequence has no end token yet.
            ids = [find_turn_end(self.tokenizer)] * (not closed) + encode_reply(self.tokenizer, message)
        fits = len(episode.begun) - episode.context.stop + len(ids) < most
        return ids if fits else None, replace(turn, asks=then.asks) if fits else turn

    def _ask_context(self, episode: Episode) -> NextContext:
        """Return what the model sees next. Raise StepError for a policy that returns anything else."""
        assert self.context is not None
        prompt_ids, row = episode.request.prompt_ids, episode.request.row or {}
        tokens = len(episode.begun) - episode.context.start + (0 if episode.context else len(prompt_ids))
        turns = episode.list_past(self._list_texts(episode))
        supplies = {"prompt": list(row["prompt"]), "turns": turns, "tokens": tokens, "row": row}
        then = self.context.ask(0, supplies)
        if not isinstance(then, NextContext):
            raise StepError(f"env.context {self.context.name}: returned {type(then).__name__}; return a NextContext")
        if turns[-1].is_memory and not then.ends and (then.messages is None or then.asks == "memory"):
            raise StepError(f"env.context {self.context.name}: after a memory, return `messages` and ask for an action")
        return then

    def _describe_failure(self, episode: Episode, error: Exception | None) -> StepError:
        if isinstance(error, StepError):
            return error
        name = type(self.environment).__module__.rpartition(".")[2]
        row = (episode.request.row or {}).get("id")
        return StepError(f"env {name}: a step of the episode of {row} failed: {type(error).__name__}: {error}")

    def _end(self, episode: Episode, finish: Literal["stop", "length", "suspended"]) -> None:
        self.outbox.append((episode.ticket, episode.make_generation(finish)))
