"""The state of one running episode: the tokens of its completion and the positions of its turns."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from learning.environments.protocol import EnvironmentProtocol, HasStateName, Outcome, PastTurn
from learning.environments.protocol import Episode as Played
from learning.samples.engine_protocol import Generation, Request, Turn, are_memories, hash_name

ENVIRONMENT = 0x656E76
"""Separates the random numbers of environments from those of sampling."""
CONTEXT = 0x636F6E
"""Separates the random numbers of a context from those of the contexts before it."""


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
    kept: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    played: Played | None = None
    """The environment's episode, from the first step in this process."""
    texts: list[str] = field(default_factory=list)
    """Texts of the model's turns, as far as they were decoded in this process."""
    observations: list[str] = field(default_factory=list)
    """The environment's answers, from the first step in this process."""
    state: int = 0
    """Hash of the state in which the last turn was taken; 0 for a memory."""

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
    def actions(self) -> int:
        """Return the number of complete turns that the environment answered."""
        return are_memories(self.all_turns)[:-1].count(False)

    @property
    def writes_memory(self) -> bool:
        """Return whether the unfinished or unanswered turn is a memory."""
        return are_memories(self.all_turns)[-1]

    @property
    def context(self) -> range:
        """Return the places, in `begun`, of the tokens that replaced the prompt; empty if none did."""
        at, start, end = 0, 0, 0
        for turn in self.all_turns:
            at += turn.sampled + turn.observed
            if turn.rebuilt:
                start, end = at - turn.observed, at
        return range(start, end)

    @property
    def full(self) -> bool:
        """Return whether it has as many tokens as its request allows in this call."""
        return self.request.limit is not None and len(self.begun) >= self.request.limit

    def make_request(self) -> Request:
        """Return the engine's request that continues it in its present context."""
        own = replace(
            self.request, n=1, first=self.sample, begun=self.begun, row=None, turns=(), world=None, continues=True
        )
        if self.context:
            number = sum(turn.rebuilt for turn in self.all_turns)
            seed = self._derive_seed(CONTEXT, number)
            ids, begun = self.begun[self.context.start : self.context.stop], self.begun[self.context.stop :]
            limit = None if own.limit is None else own.limit - self.context.stop
            own = replace(own, prompt_ids=list(ids), begun=begun, opening=0, seed=seed, limit=limit)
        return limit_request(own, self.sampling.max_new_tokens)

    def take(self, generation: Generation, version: int) -> None:
        """Add sampled tokens."""
        self.ids += generation.token_ids
        self.logprobs += generation.logprobs
        self.entropies += generation.entropies
        self.kept += generation.kept
        for sampled_by, tokens in generation.versions or [(version, len(generation.token_ids))]:
            self._add_version(sampled_by, tokens)

    def observe(self, ids: list[int], version: int) -> None:
        """Add tokens that the model did not sample; their version is that of the turn before."""
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.entropies += [0.0] * len(ids) if self.sampling.entropy else []
        self.kept += [""] * len(ids) if self.sampling.kept_tokens else []
        self._add_version(self.versions[-1][0] if self.versions else version, len(ids))

    def _add_version(self, version: int, tokens: int) -> None:
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + tokens)
        elif tokens:
            self.versions.append((version, tokens))

    def make_generation(self, finish: Literal["stop", "length", "suspended"]) -> Generation:
        """Return the tokens and turns since it was submitted."""
        own = (self.ids, self.logprobs, finish, self.entropies, self.versions, self.turns, self.sample)
        return Generation(*own, self.kept)

    def split_turns(self) -> list[tuple[int, ...]]:
        """Return the tokens of the model's turns and of the tail; the first with the part that its prompt begins."""
        parts, at, begun = [], 0, self.begun
        for turn in self.all_turns:
            parts.append(begun[at : at + turn.sampled])
            at += turn.sampled + turn.observed
        parts.append(begun[at:])
        opening = self.request.opening
        return [(*self.request.prompt_ids[-opening:], *parts[0]), *parts[1:]] if opening else parts

    def step(self, environment: EnvironmentProtocol, texts: Sequence[str]) -> Outcome:
        """Return the outcome of the model's last turn, given the texts of all turns.

        A resumed episode first replays the turns before it. A memory has an empty outcome.
        """
        memories = are_memories(self.all_turns)
        actions = [text for text, is_memory in zip(texts, memories, strict=True) if not is_memory]
        if self.played is None:
            assert self.request.row is not None
            self.played = environment.begin(self.request.row, self.seed)
        for text in actions[len(self.observations) : len(actions) - (not memories[-1])]:
            self.observations.append(self.played.step(text).observation)
        if memories[-1]:
            self.state = 0
            return Outcome(seconds=0.0)
        self.state = hash_name(self._name_state(self.played))
        outcome = self.played.step(actions[-1])
        self.observations.append(outcome.observation)
        return outcome

    def _name_state(self, played: Played) -> str:
        """Return the name of the state before an action: the episode's own, or what the model was shown last."""
        if isinstance(played, HasStateName):
            return played.state_name
        assert self.request.row is not None
        return self.observations[-1] if self.observations else str(self.request.row["prompt"][-1]["content"])

    def list_past(self, texts: Sequence[str]) -> list[PastTurn]:
        """Return all turns for a context policy, given their texts."""
        observations = iter(self.observations)
        return [
            PastTurn(text, "" if is_memory else next(observations), is_memory)
            for text, is_memory in zip(texts, are_memories(self.all_turns), strict=True)
        ]

    @property
    def seed(self) -> int:
        """Return the environment's seed, derived from the random stream, so that completions of a prompt differ.

        A branch has the seed of the completion that it branched from: the same turns lead to the same answers.
        """
        world = self.request.world
        return self._derive_seed(ENVIRONMENT, sample=self.sample if world is None else world)

    def _derive_seed(self, *places: int, sample: int | None = None) -> int:
        own = [self.request.seed, self.sample if sample is None else sample, *places]
        return int(np.random.SeedSequence(own).generate_state(1, np.uint64)[0] >> np.uint64(1))


def limit_request(request: Request, most: int) -> Request:
    """Return an engine's request whose limit is at most the tokens that a completion may have."""
    return request if request.limit is None else replace(request, limit=min(request.limit, most))
