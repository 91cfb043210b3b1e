"""What every engine speaks: requests of token ids in, generations of token ids out.

An engine is one file in this package with one class `Engine`, made as `Engine(policy, **options)`.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True)
class Request:
    """`n` completions of one prompt; sample i uses the random stream of (seed, i), whatever else runs beside it."""

    prompt_ids: list[int]
    n: int
    seed: int
    temperature: float | None = None


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 is greedy."""

    temperature: float = 1.0
    max_new_tokens: int = 64
    entropy: bool = False


@dataclass(frozen=True)
class Generation:
    """One completion. `logprobs` are processed: of the distribution sampled from, i.e. after temperature."""

    token_ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    entropies: list[float] = field(default_factory=list)


class EngineProtocol(Protocol):
    """Generation and weight sync."""

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """For each request its `n` generations; the stop token is included when it was sampled."""
        ...

    def sync(self, version: int) -> None:
        """The policy's weights have changed: forget everything cached from the old ones."""
        ...
