"""The state of one running episode: the tokens of its completion and the positions of its turns."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from learning.environments.protocol import EnvironmentProtocol, Outcome
from learning.environments.protocol import Episode as Played
from learning.samples.engine_protocol import Generation, Request, Turn

ENVIRONMENT = 0x656E76
"""Separates the random numbers of environments from those of sampling."""


@dataclass(eq=False)
class Episode:
    """A completion of several turns; the lists hold what was added since it was submitted."""

    number: int
    """Number in the order of submission."""
    ticket: int
    sample: int
    """Random stream of its request."""
    request: Request
    sampling: Any
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    played: Played | None = None
    """The environment's episode, from the first step in this process."""

    @property
    def begun(self) -> tuple[int, ...]:
        """Return every token of the completion so far."""
        return (*self.request.begun, *self.ids)

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        """Return every complete turn so far."""
        return (*self.request.turns, *self.turns)

    @property
    def tail(self) -> tuple[int, ...]:
        """Return the tokens of the unfinished or unanswered turn."""
        return self.begun[sum(turn.sampled + turn.observed for turn in self.all_turns) :]

    def ended(self, ends: tuple[int, ...]) -> bool:
        """Return whether an end token or a stop sequence closes the unanswered turn."""
        return any(self.tail[-len(stop) :] == stop for stop in (*((token,) for token in ends), *self.sampling.stop))

    @property
    def full(self) -> int:
        """Return the number of tokens at which it is suspended or ends."""
        most = self.sampling.max_new_tokens
        return most if self.request.limit is None else min(most, self.request.limit)

    def make_request(self) -> Request:
        """Return the request that continues it."""
        return replace(self.request, n=1, first=self.sample, begun=self.begun, row=None, turns=())

    def take(self, generation: Generation, version: int) -> None:
        """Add sampled tokens."""
        self.ids += generation.token_ids
        self.logprobs += generation.logprobs
        self.entropies += generation.entropies
        for sampled_by, tokens in generation.versions or [(version, len(generation.token_ids))]:
            self._add_version(sampled_by, tokens)

    def observe(self, ids: list[int], version: int) -> None:
        """Add tokens that the model did not sample; their version is that of the turn before."""
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.entropies += [0.0] * len(ids) if self.sampling.entropy else []
        self._add_version(self.versions[-1][0] if self.versions else version, len(ids))

    def _add_version(self, version: int, tokens: int) -> None:
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + tokens)
        elif tokens:
            self.versions.append((version, tokens))

    def make_generation(self, finish: Literal["stop", "length", "suspended"]) -> Generation:
        """Return the tokens and turns since it was submitted."""
        return Generation(self.ids, self.logprobs, finish, self.entropies, self.versions, self.turns, self.sample)

    def split_turns(self) -> list[tuple[int, ...]]:
        """Return the tokens of the model's turns and of the tail; the first with the part that its prompt begins."""
        parts, at, begun = [], 0, self.begun
        for turn in self.all_turns:
            parts.append(begun[at : at + turn.sampled])
            at += turn.sampled + turn.observed
        parts.append(begun[at:])
        opening = self.request.opening
        return [(*self.request.prompt_ids[-opening:], *parts[0]), *parts[1:]] if opening else parts

    def step(self, environment: EnvironmentProtocol, texts: list[str]) -> Outcome:
        """Return the outcome of the model's last turn; a resumed episode first replays the turns before it."""
        if self.played is None:
            assert self.request.row is not None
            self.played = environment.begin(self.request.row, self.seed)
            for text in texts[:-1]:
                self.played.step(text)
        return self.played.step(texts[-1])

    @property
    def seed(self) -> int:
        """Return the environment's seed, derived from the random stream, so that completions of a prompt differ."""
        places = [self.request.seed, self.sample, ENVIRONMENT]
        return int(np.random.SeedSequence(places).generate_state(1, np.uint64)[0] >> np.uint64(1))
