"""Completions in vLLM, one decode step at a time.

Every sample is a separate vLLM request, whose prompt includes the tokens of its suspended beginning; a prompt shared by
several samples is computed once, by vLLM's prefix cache. Several flights of one engine may be active: a step of one
advances all of them, and an ended completion is returned by the next step of its own flight.
"""

import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from learning.generation.engines.vllm_host import Host, allow_nondeterminism
from learning.samples.engine_protocol import Generation, Request, Sampling

Finish = Literal["stop", "length", "suspended"]


@dataclass
class RunningSample:
    """One completion in vLLM."""

    ticket: int
    sample: int
    name: str
    begun: tuple[int, ...]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def take(self, token: int, logprob: float, entropy: float, kept: str, version: int) -> None:
        """Add a token that was sampled with the weights of a version."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        self.kept.append(kept)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def ends_with(self, sequence: tuple[int, ...]) -> bool:
        """Return whether the completion, including its suspended beginning, ends with a stop sequence."""
        return (*self.begun, *self.ids)[-len(sequence) :] == sequence

    def generation(self, finish: Finish, sampling: Sampling) -> Generation:
        """Return the tokens so far as a generation, with what the sampling asks for."""
        entropies, kept = self.entropies if sampling.entropy else [], self.kept if sampling.kept_tokens else []
        return Generation(self.ids, self.logprobs, finish, entropies, self.versions, sample=self.sample, kept=kept)


Ended = tuple[RunningSample, Generation]


class VllmFlight:
    """Step-by-step generation on a vLLM host."""

    def __init__(self, engine: Any, host: Host, sampling: Sampling) -> None:
        self.engine, self.host, self.sampling = engine, host, sampling
        self.open: dict[int, RunningSample] = {}
        self.ended: list[Ended] = []
        self.lent = host.lend(self)
        self.ends = frozenset(engine.policy.stop_ids)

    @property
    def running(self) -> int:
        """Return the number of completions that have not ended or have not been returned."""
        return len(self.open) + len(self.ended)

    def add(self, ticket: int, request: Request) -> None:
        """Begin the `n` completions of a request."""
        self.engine.check(request, self.sampling)
        for i in range(request.n):
            self.begin(ticket, request, request.first + i)

    def begin(self, ticket: int, request: Request, sample: int, window: int | None = None) -> None:
        """Begin one completion of at most `window` new tokens."""
        self.engine.ready()
        number = next(self.host.numbers)
        one = RunningSample(ticket, sample, f"{ticket}-{number}", tuple(request.begun))
        most = self.sampling.max_new_tokens
        left = (most if request.limit is None else min(most, request.limit)) - len(one.begun)
        heat = self.sampling.temperature if request.temperature is None else request.temperature
        extra = {
            "number": number,
            "sampling": self.lent,
            "temperature": float(heat),
            "begun": len(one.begun),
            "most": self.sampling.max_new_tokens,
            "stream": [request.seed, sample],
        }
        ids = {"prompt_token_ids": [*request.prompt_ids, *one.begun]}
        with allow_nondeterminism():
            self.host.llm.add_request(one.name, ids, self._params(min(left, window or left), extra))
        self.open[number], self.host.open[one.name] = one, (weakref.ref(self), number)

    def _params(self, limit: int, extra: dict[str, Any]) -> Any:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]  # an extra
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]  # an extra

        return SamplingParams(
            max_tokens=limit,
            ignore_eos=True,
            stop_token_ids=sorted(self.ends),
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra,
        )

    def step(self) -> list[tuple[int, Generation]]:
        """Run one decode step; return the generations that ended, with their tickets."""
        return [(one.ticket, made) for one, made in self.advance()]

    def advance(self) -> list[Ended]:
        """Run one decode step; return the completions that ended, with their generations."""
        if self.open:
            self.engine.ready()
            self.host.step()
        ended, self.ended = self.ended, []
        return ended

    def place(self, number: int) -> int:
        """Return the position of a completion's next token."""
        return len(self.open[number].begun) + len(self.open[number].ids)

    def took(self, number: int, token: int, logprob: float, entropy: float, kept: str, over: bool) -> None:
        """Record a completion's next token; `over`: vLLM has ended the completion."""
        one = self.open[number]
        one.take(token, logprob, entropy, kept, self.engine.version)
        if token in self.ends or any(map(one.ends_with, self.sampling.stop)):
            self._close(number, "stop", over)
        elif over:
            whole = len(one.begun) + len(one.ids) >= self.sampling.max_new_tokens
            self._close(number, "length" if whole else "suspended", over)

    def _close(self, number: int, finish: Finish, over: bool) -> None:
        one = self.open.pop(number)
        if over:
            self.host.open.pop(one.name)
        else:
            self.host.abort([one.name])
        self.ended.append((one, one.generation(finish, self.sampling)))

    def suspend(self, tickets: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Suspend completions (None: all) and return them in the order of their start, after those that have ended."""
        return [(one.ticket, made) for one, made in self.take_out(tickets)]

    def take_out(self, tickets: Collection[int] | None = None) -> list[Ended]:
        """Suspend as `suspend` does; return the completions with their generations."""
        for number in [n for n, one in self.open.items() if tickets is None or one.ticket in tickets]:
            self._close(number, "suspended", over=False)
        ended, self.ended = self.ended, []
        return ended
