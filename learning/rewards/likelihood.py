"""Rewards from probabilities of the policy as it is: how likely the reference answer is, given what was written.

They need no verifier, only a reference answer; rows without one cannot be scored, nor can completions that leave the
model no room for the answer.
"""

import math
from typing import Any, Literal

from learning.data.chat import encode_text
from learning.rewards.answers import final_answer
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import logprobs

Row = dict[str, Any]
Reduce = Literal["mean_probability", "probability", "mean", "sum"]


def answer(
    rows: list[Row],
    samples: list[Sample],
    sampler: Sampler,
    *,
    marker: str | None = None,
    joiner: str = " ",
    reduce: Reduce = "mean_probability",
    gain: bool = False,
) -> list[float | None]:
    """How likely the row's answer is after the completion, under the current policy and without a gradient.

    With `marker` the answer takes the place of what follows the last marker (no marker: it cannot be scored), else it
    stands after the completion, behind `joiner`. `reduce`: mean probability of its tokens (RLPR, Yu et al. 2025), its
    probability (VeriFree, Zhou et al. 2025), or the mean or sum of log-probabilities. `gain` subtracts the same without
    the completion.
    """
    contexts = [_context(sample, sampler, marker, joiner) for sample in samples]
    targets = [None if row["answer"] is None else encode_text(sampler.policy.tokenizer, row["answer"]) for row in rows]
    places = [i for i, (c, t) in enumerate(zip(contexts, targets, strict=True)) if c is not None and t is not None]
    pairs = [(samples[i].prompt_ids + (contexts[i] or []), targets[i] or []) for i in places]
    if gain:
        lead = encode_text(sampler.policy.tokenizer, marker + joiner) if marker else []
        pairs += [(samples[i].prompt_ids + lead, targets[i] or []) for i in places]
    scores = [None if lps is None else reduced(lps, reduce) for lps in logprobs(sampler, pairs)]
    found: list[float | None] = [None] * len(samples)
    for k, i in enumerate(places):
        plain = scores[len(places) + k] if gain else 0.0
        found[i] = None if scores[k] is None or plain is None else scores[k] - plain
    return found


def confidence(samples: list[Sample]) -> list[float | None]:
    """Geometric mean of the probabilities at which a completion's tokens were sampled; None for an expert's."""
    return [None if t.logprobs is None else reduced(t.logprobs[t.given :], "mean", exponential=True) for t in samples]


def reduced(logprobs: list[float], how: str, *, exponential: bool = False) -> float | None:
    """One number from log-probabilities; None where there is none."""
    if not logprobs:
        return None
    if how == "mean_probability":
        return sum(math.exp(lp) for lp in logprobs) / len(logprobs)
    value = sum(logprobs) / (len(logprobs) if how == "mean" else 1)
    return math.exp(value) if exponential or how == "probability" else value


def _context(sample: Sample, sampler: Sampler, marker: str | None, joiner: str) -> list[int] | None:
    """Token ids between the prompt and the answer."""
    if marker is None:
        ids = sample.completion_ids
        ended = bool(ids) and ids[-1] in sampler.policy.stop_ids
        return ids[: len(ids) - ended] + encode_text(sampler.policy.tokenizer, joiner)
    tail = final_answer(sample.text, marker)
    if tail is None:
        return None
    return encode_text(sampler.policy.tokenizer, sample.text[: len(sample.text) - len(tail)] + joiner)
