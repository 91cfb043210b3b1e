"""Sample completions of prompts, each with its own random stream, and score them.

Random streams are functions of the stage's seed and the iteration, so that a resumed run needs no state for them.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from learning.data.chat import decode, encode_completion, encode_prompt
from learning.data.rows import CHAT_COLUMNS
from learning.lookup import Bound, Overlay, Supplies
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol, Generation, Request, Sampling
from learning.samples.sample import Messages, Row, Sample, SampleRequest, last_turn
from learning.sampling.scoring import PlacedReward, ScoredSamples, scores_of, sum_scores
from schemas.errors import StepError
from schemas.number_schedules import Number, value_at


def stream(seed: int, *places: int) -> int:
    """Return the seed of a random stream; no two places share one."""
    return int(np.random.SeedSequence([seed, *places]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass
class Sampler:
    """Samples for one iteration (`step`), during which the policy's weights do not change."""

    engine: EngineProtocol
    policy: Policy
    sampling: Sampling
    seed: int
    step: int
    groups: int = 0
    """Group ids given out so far."""
    sampled: int = 0
    """Tokens sampled so far, including those of completions that have not ended or were dropped."""
    _count: int = field(default=0, repr=False)
    _encoded: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def new_group(self) -> int:
        """Return an id that no group of this iteration has."""
        self.groups += 1
        return self.groups - 1

    def encode(self, messages: Messages, row: Row | None = None) -> list[int]:
        """Return the token ids of a prompt, which is rendered once for all its completions; `row` may have tools."""
        key = json.dumps([messages, *[(row or {}).get(name) for name in CHAT_COLUMNS]])
        if key not in self._encoded:
            self._encoded[key] = encode_prompt(self.policy.tokenizer, messages, row)
        return list(self._encoded[key])

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Return the samples of every request, in order."""
        generations = self.engine.generate(self.engine_requests(requests), self.sampling)
        self.sampled += sum(g.sampled for of in generations for g in of)
        placed = [(request, self.new_group() if request.group is None else request.group) for request in requests]
        return [
            self.build_sample(request, group, g)
            for (request, group), of in zip(placed, generations, strict=True)
            for g in of
        ]

    def engine_requests(self, requests: Sequence[SampleRequest]) -> list[Request]:
        """Return the engine's requests. Raise StepError for a prompt that leaves no room for a completion."""
        return [self._engine_request(request) for request in requests]

    def _engine_request(self, request: SampleRequest) -> Request:
        ids = self.encode(request.context or request.prompt or request.row["prompt"], request.row)
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
        # To the engine, given tokens are a part of the prompt: it did not sample them.
        return Request(
            [*ids, *request.begin],
            request.n,
            seed,
            temperature=request.temperature,
            row=request.row,
            opening=len(request.begin),
        )

    def build_sample(self, request: SampleRequest, group: int, generation: Generation) -> Sample:
        """Return the sample of a generation that a request asked for."""
        trained = self.encode(request.prompt or request.row["prompt"], request.row)
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
            context_ids=self.encode(request.context, request.row) if request.context else None,
            turns=list(generation.turns),
            kept=[""] * cut + list(generation.kept) if generation.kept else [],
        )

    def sample_from_text(
        self, row: Row, text: str, *, source: str, group: int, prompt: Messages | None = None
    ) -> Sample:
        """Return a completion that the policy did not sample (an expert's, a teacher's) as a sample."""
        ids = encode_completion(self.policy.tokenizer, [{"role": "assistant", "content": text}])
        trained = self.encode(prompt or row["prompt"], row)
        return Sample(row, group, source, trained, ids, None, "stop", text, versions=[self.step] * len(ids))

    def at(self, sampling: Sampling) -> "Sampler":
        """Return the same with other sampling options; group ids and streams continue separately."""
        return replace(self, sampling=sampling)


def score(
    rewards: Sequence[Bound | PlacedReward],
    weights: Sequence[Number],
    samples: list[Sample],
    supplies: Supplies,
    read: Collection[str] = (),
    shown: dict[str, str] | None = None,
) -> None:
    """Fill in `scores` (raw; None: unscorable) and `reward` (their weighted sum) of samples.

    A reward of weight 0, or one that is optional, makes no sample unscorable, unless another part reads its raw scores:
    those in `read`.
    `supplies` holds the iteration as `step`, and what rewards ask for besides the samples. `shown` names the rewards
    whose first failure was printed, as in `scores_of`. Suspended samples are not scored; their scores are 0.
    """
    step, shown = supplies["step"], {} if shown is None else shown
    ended = [sample for sample in samples if sample.finish != "suspended"]
    for name, reward in zip(names(rewards), rewards, strict=True):
        scores = scores_of(reward, step, Overlay(supplies, scoring(ended)), shown) if ended else []
        for sample in samples:
            sample.scores[name] = 0.0
        for sample, value in zip(ended, scores, strict=True):
            sample.scores[name] = value
    factors = [value_at(weight, step) for weight in weights]
    may_lack = [
        name not in read and (factor == 0 or reward.optional)
        for name, reward, factor in zip(names(rewards), rewards, factors, strict=True)
    ]
    for sample in samples:
        sample.reward = sum_scores(list(sample.scores.values()), factors, may_lack)


def scoring(samples: Sequence[Sample]) -> ScoredSamples:
    """Return what every reward may ask for of the completions that it scores."""
    return {
        "rows": [sample.row for sample in samples],
        "completions": [sample.text for sample in samples],
        "groups": [sample.group for sample in samples],
        "sources": [sample.source for sample in samples],
        "samples": list(samples),
    }


def names(rewards: Sequence[Bound | PlacedReward]) -> list[str]:
    """Return the name of each reward in scores and metrics: its own, numbered from the second of the same name."""
    unique: list[str] = []
    for reward in rewards:
        same = sum(n == reward.name or n.startswith(f"{reward.name}#") for n in unique)
        unique.append(f"{reward.name}#{same + 1}" if same else reward.name)
    return unique
