"""One episode under way: what is there of a completion, and where its turns lie."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from learning.environments.protocol import EnvironmentProtocol, Outcome
from learning.environments.protocol import Episode as Played
from learning.samples.engine_protocol import Generation, Request, Turn

ENVIRONMENT = 0x656E76
"""Sets the random numbers of environments apart from those of sampling."""


@dataclass(eq=False)
class Episode:
    """A completion that goes on turn by turn; lists hold what has come to it since it was submitted."""

    number: int
    """In the order of submission."""
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
    """The environment's side of it, from its first step here."""

    @property
    def begun(self) -> tuple[int, ...]:
        """Every token of the completion so far."""
        return (*self.request.begun, *self.ids)

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        """Every whole turn so far."""
        return (*self.request.turns, *self.turns)

    @property
    def tail(self) -> tuple[int, ...]:
        """Tokens of the turn that has not ended, or that has had no answer yet."""
        return self.begun[sum(turn.sampled + turn.observed for turn in self.all_turns) :]

    def ended(self, ends: tuple[int, ...]) -> bool:
        """Return whether the turn without an answer yet is whole: an end token or a stop sequence closes it."""
        return any(self.tail[-len(stop) :] == stop for stop in (*((token,) for token in ends), *self.sampling.stop))

    @property
    def full(self) -> int:
        """Tokens at which it is suspended, or as long as it may become."""
        most = self.sampling.max_new_tokens
        return most if self.request.limit is None else min(most, self.request.limit)

    def asked(self) -> Request:
        """What an engine is told to go on with it."""
        return replace(self.request, n=1, first=self.sample, begun=self.begun, row=None, turns=())

    def take(self, made: Generation, version: int) -> None:
        """Add what was sampled."""
        self.ids += made.token_ids
        self.logprobs += made.logprobs
        self.entropies += made.entropies
        for of, tokens in made.versions or [(version, len(made.token_ids))]:
            self._note(of, tokens)

    def observe(self, ids: list[int], version: int) -> None:
        """Add what the model did not sample; its version is that of the turn before it."""
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.entropies += [0.0] * len(ids) if self.sampling.entropy else []
        self._note(self.versions[-1][0] if self.versions else version, len(ids))

    def _note(self, version: int, tokens: int) -> None:
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + tokens)
        elif tokens:
            self.versions.append((version, tokens))

    def generation(self, finish: Literal["stop", "length", "suspended"]) -> Generation:
        """What there is of it."""
        return Generation(self.ids, self.logprobs, finish, self.entropies, self.versions, self.turns, self.sample)

    def parts(self) -> list[tuple[int, ...]]:
        """Tokens of the model's turns, whole ones and then the tail; the first with what its prompt begins it with."""
        found, at, begun = [], 0, self.begun
        for turn in self.all_turns:
            found.append(begun[at : at + turn.sampled])
            at += turn.sampled + turn.observed
        found.append(begun[at:])
        opening = self.request.opening
        return [(*self.request.prompt_ids[-opening:], *found[0]), *found[1:]] if opening else found

    def step(self, environment: EnvironmentProtocol, texts: list[str]) -> Outcome:
        """What comes of the last of the model's turns; an episode that is taken up again is given those before it."""
        if self.played is None:
            assert self.request.row is not None
            self.played = environment.begin(self.request.row, self.seed)
            for text in texts[:-1]:
                self.played.step(text)
        return self.played.step(texts[-1])

    @property
    def seed(self) -> int:
        """What the environment draws from: of the random stream, so that siblings differ."""
        places = [self.request.seed, self.sample, ENVIRONMENT]
        return int(np.random.SeedSequence(places).generate_state(1, np.uint64)[0] >> np.uint64(1))
