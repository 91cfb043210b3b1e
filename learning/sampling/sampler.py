"""How samples come about: prompts in, completions out, each with a random stream of its own, then their scores.

Everything random is a function of the stage's seed and the iteration, so that a continued run needs no state for it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from learning.data.chat import decode, encode_completion, encode_prompt
from learning.generation.services.rescoring import likelihoods
from learning.lookup import Bound
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol, Generation, Request, Sampling
from learning.samples.sample import Messages, Sample, SampleRequest, last_turn
from learning.sampling.scoring import scores_of
from schemas.errors import StepError
from schemas.schedules import Number, value_at


def stream(seed: int, *places: int) -> int:
    """A seed for a random stream: no two places share one."""
    return int(np.random.SeedSequence([seed, *places]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass
class Sampler:
    """Samples for one iteration (`step`); the policy's weights stand still while it lives."""

    engine: EngineProtocol
    policy: Policy
    sampling: Sampling
    seed: int
    step: int
    groups: int = 0
    """Group ids given out so far."""
    sampled: int = 0
    """Tokens sampled so far, of completions that have not ended or become no sample as well."""
    _count: int = field(default=0, repr=False)
    _encoded: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def new_group(self) -> int:
        """An id that no group of this iteration has."""
        self.groups += 1
        return self.groups - 1

    def encode(self, messages: Messages) -> list[int]:
        """Token ids of a prompt; rendered once, however many completions it has."""
        key = json.dumps(messages)
        if key not in self._encoded:
            self._encoded[key] = encode_prompt(self.policy.tokenizer, messages)
        return list(self._encoded[key])

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Completions of everything asked for, in order."""
        generations = self.engine.generate(self.engine_requests(requests), self.sampling)
        self.sampled += sum(g.sampled for of in generations for g in of)
        placed = [(request, self.new_group() if request.group is None else request.group) for request in requests]
        return [
            self.build_sample(request, group, g)
            for (request, group), of in zip(placed, generations, strict=True)
            for g in of
        ]

    def engine_requests(self, requests: Sequence[SampleRequest]) -> list[Request]:
        """What the engine is told; raises StepError for a prompt that leaves no room for a completion."""
        return [self._engine_request(request) for request in requests]

    def _engine_request(self, request: SampleRequest) -> Request:
        ids = self.encode(request.context or request.prompt or request.row["prompt"])
        longest = len(ids) + len(request.begin) + self.sampling.max_new_tokens
        if longest > self.policy.max_length:
            raise StepError(
                f"prompt {request.row.get('id')}: {len(ids)} tokens and max_completion_length "
                f"{self.sampling.max_new_tokens} make more than the model's {self.policy.max_length}; drop long "
                "prompts in a curate stage or lower that length"
            )
        if request.group is not None:
            self.groups = max(self.groups, request.group + 1)
        self._count += 1
        seed = stream(self.seed, self.step, self._count - 1)
        # What a completion begins with is a part of the prompt to the engine: it is nobody's sample.
        how = {"temperature": request.temperature, "row": request.row, "opening": len(request.begin)}
        return Request([*ids, *request.begin], request.n, seed, **how)

    def build_sample(self, request: SampleRequest, group: int, generation: Generation) -> Sample:
        """Return the sample of a generation that a request asked for."""
        trained = self.encode(request.prompt or request.row["prompt"])
        cut, ids = len(request.begin), [*request.begin, *generation.token_ids]
        return Sample(
            request.row,
            group,
            request.source,
            trained,
            ids,
            [0.0] * cut + list(generation.logprobs),
            generation.finish,
            decode(self.policy.tokenizer, ids[last_turn(cut, generation.turns) :]),
            given=cut,
            entropies=[0.0] * cut + list(generation.entropies) if generation.entropies else [],
            versions=[self.step] * len(ids),
            context_ids=self.encode(request.context) if request.context else None,
            turns=list(generation.turns),
        )

    def sample_from_text(
        self, row: dict[str, Any], text: str, *, source: str, group: int, prompt: Messages | None = None
    ) -> Sample:
        """A completion from outside (an expert, a teacher) as a sample."""
        ids = encode_completion(self.policy.tokenizer, [{"role": "assistant", "content": text}])
        trained = self.encode(prompt or row["prompt"])
        return Sample(row, group, source, trained, ids, None, "stop", text, versions=[self.step] * len(ids))

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Log-probabilities of the second of each pair of token ids after the first, under the current policy."""
        return likelihoods(self.policy.model, pairs, self.sampling.temperature)

    def at(self, sampling: Sampling) -> "Sampler":
        """The same with another way to sample; group ids and streams go on separately."""
        return replace(self, sampling=sampling)


def score(
    rewards: Sequence[Bound],
    weights: Sequence[Number],
    samples: list[Sample],
    have: Mapping[str, Any],
    read: Collection[str] = (),
    shown: set[str] | None = None,
) -> None:
    """Fill `scores` (raw; None: unscorable) and `reward` (weighted sum) of samples.

    A reward whose weight is 0 makes no sample unscorable, unless another part reads its raw scores: those in `read`.
    `have` is what rewards may ask for beside the samples, and the iteration as `step`; `shown` and what happens when a
    reward raises are as in `scores_of`. What is suspended is shown to no reward: it has earned 0 so far.
    """
    step, shown = have["step"], set() if shown is None else shown
    ended = [sample for sample in samples if sample.finish != "suspended"]
    for name, bound in zip(names(rewards), rewards, strict=True):
        scores = scores_of(bound, step, {**have, **scoring(ended)}, shown) if ended else []
        for sample in samples:
            sample.scores[name] = 0.0
        for sample, value in zip(ended, scores, strict=True):
            sample.scores[name] = value
    factors = [value_at(weight, step) for weight in weights]
    for sample in samples:
        terms = list(zip(factors, sample.scores.items(), strict=True))
        unknown = any(s is None and (w != 0 or name in read) for w, (name, s) in terms)
        sample.reward = None if unknown else sum(w * s for w, (_, s) in terms if s is not None)


def scoring(samples: Sequence[Sample]) -> dict[str, Any]:
    """What every reward may ask for of the completions it scores."""
    return {
        "rows": [t.row for t in samples],
        "completions": [t.text for t in samples],
        "groups": [t.group for t in samples],
        "sources": [t.source for t in samples],
        "samples": list(samples),
    }


def names(rewards: Sequence[Bound]) -> list[str]:
    """Name of each reward in scores and curves: its own, numbered from the second of the same name."""
    found: list[str] = []
    for bound in rewards:
        seen = sum(n == bound.name or n.startswith(f"{bound.name}#") for n in found)
        found.append(f"{bound.name}#{seen + 1}" if seen else bound.name)
    return found
