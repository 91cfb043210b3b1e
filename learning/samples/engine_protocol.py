"""The protocol of engines: requests of token ids in, generations of token ids out.

An engine is one file in this package with one class `Engine`, made as `Engine(policy, **options)`.
Shapes: B sequences at once, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from schemas.base import JsonObject
from schemas.kept_tokens import KeptTokens

if TYPE_CHECKING:
    from torch import Tensor

Processor = Callable[..., "Tensor"]
"""(logits_BV after temperature, place_B of the token in its completion) → logits_BV; every row for itself alone.

One whose attribute `reads_contexts` is true gets `contexts_B` too: the token ids before the one that is sampled, of the
prompt and the completion so far; an empty list where no completion is.
"""


def reads_contexts(processor: Processor | None) -> bool:
    """Return whether a processor looks at the tokens before the one that is sampled."""
    return bool(getattr(processor, "reads_contexts", False))


@dataclass(frozen=True)
class Turn:
    """A turn of the model inside a completion, and what an environment made of it."""

    sampled: int
    """Tokens that the model sampled."""
    observed: int = 0
    """Tokens that follow them and tell what came of it, up to where the model's next turn begins."""
    reward: float = 0.0
    seconds: float = 0.0
    """What the action took, on the environment's clock."""
    ok: bool = True
    measured: bool = False
    """Whether the seconds are real time, on which no two runs agree."""
    rebuilt: bool = False
    """Whether the observed tokens are a new context, which replaces the prompt and everything before it."""
    asks: Literal["action", "memory"] = "action"
    """What the model's next turn is: an action for the environment, or a memory, which only later contexts show."""
    state: int = 0
    """Hash of the environment's state in which the action was taken; 0 for a memory."""
    kind: int = 0
    """Hash of the kind of turn that the environment named; 0 without one."""
    merit: float = 0.0
    """What a rule for its kind pays for the turn, apart from the reward."""


def hash_name(name: str) -> int:
    """Return a positive number of 63 bits for a name, equal in all processes."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1 | 1


def are_memories(turns: Sequence[Turn]) -> list[bool]:
    """Return, for each turn and for the turn after them, whether it is a memory instead of an action."""
    return [False, *(turn.asks == "memory" for turn in turns)]


@dataclass(frozen=True)
class Request:
    """`n` completions of one prompt; sample i uses the random stream of (seed, first + i), whatever else runs.

    Token k of a completion takes draw k of its stream, so that a completion continued from the tokens `begun` is the
    same as one without a break.
    """

    prompt_ids: list[int]
    n: int
    seed: int
    first: int = 0
    begun: tuple[int, ...] = ()
    """Tokens of the completion that exist already: they count in its length and are not returned again."""
    temperature: float | None = None
    """None: that of the sampling; 0: greedy."""
    row: JsonObject | None = field(default=None, compare=False)
    """The problem, for an environment that answers the model's turns; engines do not look at it."""
    turns: tuple[Turn, ...] = ()
    """The whole turns among `begun`; what comes after them is the beginning of the next."""
    opening: int = 0
    """How many of the prompt's last tokens are already the beginning of the first turn."""
    world: int | None = None
    """Random stream of the environment: that of the completion it branched from; None: that of its own sample."""
    limit: int | None = None
    """Suspend it at so many tokens of its completion; None: they may become as many as the sampling says."""
    continues: bool = False
    """Whether a completion that stops is probably continued by a further request, with the same stream: an episode."""


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 is greedy."""

    temperature: float = 1.0
    max_new_tokens: int = 64
    """Tokens of a completion, with those that were begun."""
    entropy: bool = False
    """Whether generations carry entropies."""
    stop: tuple[tuple[int, ...], ...] = ()
    """Sequences of token ids that end a completion, besides the tokenizer's end token; they stay a part of it."""
    processor: Processor | None = None
    """Changes the distribution that is sampled from; what is reported is of the changed one."""
    kept_tokens: KeptTokens | None = None
    """Tokens that are sampled from, chosen after the processor; what is reported is of the kept ones. None: all."""
    target: int | None = None
    """Suspend what is left as soon as so many completions of the call have ended."""
    window: int | None = None
    """Suspend a completion that has not ended after so many tokens in this call."""


@dataclass(frozen=True)
class Generation:
    """One completion. `logprobs` are processed: of the distribution sampled from, i.e. after temperature.

    A suspended one goes on as a request with `begun` and the same seed and stream; it may hold no token yet.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length", "suspended"]
    entropies: list[float] = field(default_factory=list)
    """Nats of the distribution that each token was sampled from; empty unless the sampling asks for them."""
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Spans (version, tokens) of `token_ids`, in order: which weights sampled how many; empty: those of the call."""
    turns: list[Turn] = field(default_factory=list)
    """Turns that ended in this call, in order, with an environment; their observations are among `token_ids`, with
    log-probability and entropy 0, because the model did not sample them. After the last comes an open turn."""
    sample: int = 0
    """Random stream within its request: `first` for the first of the `n`, and so on; set by a flight only."""
    kept: list[str] = field(default_factory=list)
    """Record of the tokens that each one was sampled from (`learning.samples.kept_tokens`), empty for observations; no
    records unless the sampling keeps only some."""

    @property
    def sampled(self) -> int:
        """How many of the tokens the model sampled: all but observations."""
        return len(self.token_ids) - sum(turn.observed for turn in self.turns)


class EngineProtocol(Protocol):
    """Generation and weight sync."""

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """For each request its `n` generations; the stop token is included when it was sampled."""
        ...

    def sync(self, version: int) -> None:
        """Drop everything cached from the old weights: the policy's weights have changed."""
        ...


@runtime_checkable
class Flight(Protocol):
    """Generation in progress, step by step: requests may be added, suspended and continued while others run.

    Between steps weights may be replaced (`engine.sync(version)`): what runs goes on under the new ones from the exact
    token with a recomputed cache, and `Generation.versions` names the version that sampled each token.
    """

    @property
    def running(self) -> int:
        """Completions that have not ended, those that wait for a place too."""
        ...

    def add(self, ticket: int, request: Request) -> None:
        """Begin the `n` completions of a request; `ticket` is the caller's name for it. Raises StepError."""
        ...

    def step(self) -> list[tuple[int, Generation]]:
        """One decode step for all that run; the completions that ended, each with its ticket and its `sample`."""
        ...

    def suspend(self, tickets: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Take completions out (None: all), in the order of their beginning; they go on as requests with `begun`."""
        ...


@runtime_checkable
class FlyingEngine(EngineProtocol, Protocol):
    """An engine that generates step by step as well."""

    def flight(self, sampling: Sampling) -> Flight:
        """Nothing in flight yet; `target` and `window` of a sampling are those of `generate` alone."""
        ...
