"""Rewards from probabilities: of the reference answer after a completion under the current policy, or of a completion.

Those of the answer need no verifier, only a reference answer. Rows without one cannot be scored, nor completions after
which the answer exceeds the model's context.
"""

import math
from typing import Literal

from learning.data.chat import encode_completion, encode_text
from learning.data.rows import Row
from learning.rewards.answers import extract_final_answer
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest, logprobs
from schemas.references import PolicyRef

PER_TOKEN = 64
"""Characters per token of the context beyond which a completion is too long to be encoded."""
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
    """Likelihood of the row's answer after the completion under the current policy (RLPR 2025, VeriFree 2025).

    With `marker` the answer replaces the text after the last marker (without one it cannot be scored), else it follows
    the completion and `joiner`. `reduce`: mean probability of its tokens (RLPR, Yu et al. 2025), its probability
    (VeriFree, Zhou et al. 2025), or the mean or sum of log-probabilities. `gain` subtracts the same without the
    completion.
    """
    contexts = [_encode_context(sample, sampler, marker, joiner) for sample in samples]
    targets = [None if row["answer"] is None else encode_text(sampler.policy.tokenizer, row["answer"]) for row in rows]
    places = [i for i, (c, t) in enumerate(zip(contexts, targets, strict=True)) if c is not None and t is not None]
    pairs = [(samples[i].prompt_ids + (contexts[i] or []), targets[i] or []) for i in places]
    if gain:
        lead = encode_text(sampler.policy.tokenizer, marker + joiner) if marker else []
        pairs += [(samples[i].prompt_ids + lead, targets[i] or []) for i in places]
    scores = [None if lps is None else reduce_logprobs(lps, reduce) for lps in logprobs(sampler, pairs)]
    rewards: list[float | None] = [None] * len(samples)
    for k, i in enumerate(places):
        score, baseline = scores[k], scores[len(places) + k] if gain else 0.0
        rewards[i] = None if score is None or baseline is None else score - baseline
    return rewards


def completion(
    rows: list[Row], completions: list[str], *, model: PolicyRef, reduce: Reduce = "mean"
) -> list[float | None]:
    """Log-probability of the completion after its prompt under `model`, with the token that ends it: mean or sum.

    `reduce: probability` and `mean_probability` are as in `answer`. None where the context of the model has no room.
    """
    judge = guest(model)
    longest = PER_TOKEN * judge.policy.max_length
    pairs: list[tuple[list[int], list[int]]] = []
    for row, text in zip(rows, completions, strict=True):
        said = [{"role": "assistant", "content": text}]
        # No context comes before a text that is too long to be encoded: such a pair has no likelihood.
        prompt = judge.encode(row["prompt"], row) if len(text) <= longest else []
        pairs.append((prompt, encode_completion(judge.policy.tokenizer, said) if prompt else []))
    return [None if lps is None else reduce_logprobs(lps, reduce) for lps in logprobs(judge, pairs)]


def confidence(samples: list[Sample]) -> list[float | None]:
    """Geometric mean of the sampling probabilities of a completion's tokens; None for an expert's."""
    return [
        None if t.logprobs is None else reduce_logprobs(t.logprobs[t.given :], "mean", exponential=True)
        for t in samples
    ]


def reduce_logprobs(logprobs: list[float], how: str, *, exponential: bool = False) -> float | None:
    """Return one number from log-probabilities; None without any."""
    if not logprobs:
        return None
    if how == "mean_probability":
        return sum(math.exp(lp) for lp in logprobs) / len(logprobs)
    value = sum(logprobs) / (len(logprobs) if how == "mean" else 1)
    return math.exp(value) if exponential or how == "probability" else value


def _encode_context(sample: Sample, sampler: Sampler, marker: str | None, joiner: str) -> list[int] | None:
    """Return the token ids between the prompt and the answer; None without a marker in the text."""
    if marker is None:
        ids = sample.completion_ids
        ended = bool(ids) and ids[-1] in sampler.policy.stop_ids
        return ids[: len(ids) - ended] + encode_text(sampler.policy.tokenizer, joiner)
    tail = extract_final_answer(sample.text, marker)
    if tail is None:
        return None
    return encode_text(sampler.policy.tokenizer, sample.text[: len(sample.text) - len(tail)] + joiner)
