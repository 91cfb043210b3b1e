"""Rewards from probabilities of the policy as it is: how likely the reference answer is, given what was written.

They need no verifier, only a reference answer; rows without one cannot be scored, nor can completions that leave the
model no room for the answer.
"""

import math
from typing import Literal

from learning.data.chat import encode_text
from learning.data.rows import Row
from learning.rewards.answers import extract_final_answer
from learning.samples.sample import Trial
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import logprobs

Reduce = Literal["mean_probability", "probability", "mean", "sum"]


def answer(
    rows: list[Row],
    trials: list[Trial],
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
    contexts = [_encode_context(trial, sampler, marker, joiner) for trial in trials]
    targets = [None if row["answer"] is None else encode_text(sampler.policy.tokenizer, row["answer"]) for row in rows]
    places = [i for i, (c, t) in enumerate(zip(contexts, targets, strict=True)) if c is not None and t is not None]
    pairs = [(trials[i].prompt_ids + (contexts[i] or []), targets[i] or []) for i in places]
    if gain:
        lead = encode_text(sampler.policy.tokenizer, marker + joiner) if marker else []
        pairs += [(trials[i].prompt_ids + lead, targets[i] or []) for i in places]
    scores = [None if lps is None else reduce_logprobs(lps, reduce) for lps in logprobs(sampler, pairs)]
    found: list[float | None] = [None] * len(trials)
    for k, i in enumerate(places):
        plain = scores[len(places) + k] if gain else 0.0
        found[i] = None if scores[k] is None or plain is None else scores[k] - plain
    return found


def confidence(trials: list[Trial]) -> list[float | None]:
    """Geometric mean of the probabilities at which a completion's tokens were sampled; None for an expert's."""
    return [
        None if t.logprobs is None else reduce_logprobs(t.logprobs[t.given :], "mean", exponential=True) for t in trials
    ]


def reduce_logprobs(logprobs: list[float], how: str, *, exponential: bool = False) -> float | None:
    """One number from log-probabilities; None where there is none."""
    if not logprobs:
        return None
    if how == "mean_probability":
        return sum(math.exp(lp) for lp in logprobs) / len(logprobs)
    value = sum(logprobs) / (len(logprobs) if how == "mean" else 1)
    return math.exp(value) if exponential or how == "probability" else value


def _encode_context(trial: Trial, sampler: Sampler, marker: str | None, joiner: str) -> list[int] | None:
    """Token ids between the prompt and the answer."""
    if marker is None:
        ids = trial.completion_ids
        ended = bool(ids) and ids[-1] in sampler.policy.stop_ids
        return ids[: len(ids) - ended] + encode_text(sampler.policy.tokenizer, joiner)
    tail = extract_final_answer(trial.text, marker)
    if tail is None:
        return None
    return encode_text(sampler.policy.tokenizer, trial.text[: len(trial.text) - len(tail)] + joiner)
