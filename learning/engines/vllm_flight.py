"""Completions in vLLM, decode step by decode step.

Every sample is a request of its own to vLLM, with the tokens that it has begun as a part of the prompt; a prompt that
several share is computed once, by vLLM's prefix cache.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from learning.engines.protocol import Generation, Request, Sampling
from learning.engines.vllm_host import Host, apart
from schemas.errors import StepError


@dataclass
class Running:
    """One completion in vLLM."""

    ticket: int
    sample: int
    id: str
    begun: tuple[int, ...]
    limit: int
    """New tokens at most."""
    ids: list[int] = field(default_factory=list)
    drawn: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Log-probability and entropy by place in the completion."""
    versions: list[tuple[int, int]] = field(default_factory=list)

    def take(self, new: list[int], version: int) -> None:
        """Add tokens that the weights of a version have sampled."""
        self.ids += new
        if new and self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + len(new))
        elif new:
            self.versions.append((version, len(new)))

    def ends_with(self, sequence: tuple[int, ...]) -> bool:
        """Whether the completion, what was begun included, ends with a stop sequence."""
        return (*self.begun, *self.ids)[-len(sequence) :] == sequence

    def generation(self, finish: Any, *, entropy: bool) -> Generation:
        """What there is of it."""
        drawn = [self.drawn[len(self.begun) + k] for k in range(len(self.ids))]
        entropies = [e for _, e in drawn] if entropy else []
        return Generation(self.ids, [lp for lp, _ in drawn], finish, entropies, self.versions, self.sample)


class VllmFlight:
    """Flight over a host; one at a time, because the weights and the processor are the host's."""

    def __init__(self, engine: Any, host: Host, sampling: Sampling) -> None:
        if not all(sampling.stop):
            raise StepError("engine vllm: a stop sequence is empty")
        self.engine, self.host, self.sampling = engine, host, sampling
        self.open: dict[int, Running] = {}
        self.by_id: dict[str, int] = {}
        self.count = 0
        self._claim()

    def _claim(self) -> None:
        """Make the host's sampling this flight's."""
        flying = self.host.flying
        if flying is self:
            return
        if flying is not None:
            raise StepError("engine vllm: another flight has not ended; suspend it first")
        self.host.lend(self)

    @property
    def running(self) -> int:
        """Completions that have not ended."""
        return len(self.open)

    def add(self, ticket: int, request: Request) -> None:
        """Begin the `n` completions of a request."""
        self.engine.check(request, self.sampling)
        for i in range(request.n):
            self.begin(ticket, request, request.first + i)

    def begin(self, ticket: int, request: Request, sample: int, window: int | None = None) -> int:
        """Begin one completion, of `window` new tokens at most; returns its number."""
        self._claim()
        number, self.count = self.count, self.count + 1
        left = self.sampling.max_new_tokens - len(request.begun)
        one = Running(ticket, sample, f"{ticket}-{number}", tuple(request.begun), min(left, window or left))
        with apart():
            ids = [*request.prompt_ids, *request.begun]
            self.host.llm.add_request(one.id, {"prompt_token_ids": ids}, self._params(request, one, number))
        self.open[number], self.by_id[one.id] = one, number
        self.host.ids.add(one.id)
        return number

    def _params(self, request: Request, one: Running, number: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        heat = self.sampling.temperature if request.temperature is None else request.temperature
        return SamplingParams(
            max_tokens=one.limit,
            ignore_eos=True,
            stop_token_ids=[self.engine.policy.tokenizer.eos_token_id],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={
                "number": number,
                "temperature": float(heat),
                "begun": len(request.begun),
                "most": self.sampling.max_new_tokens,
                "stream": [request.seed, one.sample],
            },
        )

    def step(self) -> list[tuple[int, Generation]]:
        """One decode step; what ended."""
        return [(one.ticket, made) for one, made in self.advance()]

    def advance(self) -> list[tuple[Running, Generation]]:
        """One decode step; the completions that ended, with what became of them."""
        if not self.open:
            return []
        self.engine.ready()
        with apart():
            outputs = self.host.llm.step()
            records = self.host.call("posttrain_records")
        for number, place, logprob, entropy in records:
            if number in self.open:
                self.open[number].drawn[place] = (logprob, entropy)
        ended = []
        for output in outputs:
            number = self.by_id.get(output.request_id)
            if number is not None and (finish := self._taken(self.open[number], output)):
                ended.append(self._close(number, finish))
        return ended

    def _taken(self, one: Running, output: Any) -> str | None:
        """Take a step's token; how the completion has ended, if it has."""
        done = output.outputs[0]
        one.take(list(done.token_ids), self.engine.version)
        eos = self.engine.policy.tokenizer.eos_token_id
        if one.ids[-1:] == [eos] or any(one.ends_with(sequence) for sequence in self.sampling.stop):
            if not output.finished:
                self.host.abort([one.id])
            return "stop"
        if not output.finished:
            return None
        return "length" if len(one.begun) + len(one.ids) >= self.sampling.max_new_tokens else "suspended"

    def suspend(self, tickets: Collection[int] | None = None) -> list[tuple[int, Generation]]:
        """Take completions out (None: all), in the order of their beginning."""
        return [(one.ticket, made) for one, made in self.take_out(tickets)]

    def take_out(self, tickets: Collection[int] | None = None) -> list[tuple[Running, Generation]]:
        """The same with the completions themselves."""
        chosen = [number for number, one in self.open.items() if tickets is None or one.ticket in tickets]
        self.host.abort([self.open[number].id for number in chosen])
        return [self._close(number, "suspended") for number in chosen]

    def _close(self, number: int, finish: str) -> tuple[Running, Generation]:
        one = self.open.pop(number)
        del self.by_id[one.id]
        self.host.ids.discard(one.id)
        return one, one.generation(finish, entropy=self.sampling.entropy)
