"""Rewards without a reference answer: what most completions of a group say counts as right.

Answers are compared in the normal form of `answers.exact`. A completion without a final answer casts no vote and earns
0; where nobody votes nothing can be scored. Of answers with equally many votes the one that was given first wins.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.lookup import Inner, RewardFunction
from learning.rewards.answers import final_answer, normal
from learning.rewards.composite import asked
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import PolicyRef

Row = dict[str, Any]
Share = Annotated[float, Field(ge=0, le=1)]


def majority(
    rows: list[Row],
    completions: list[str],
    groups: list[int],
    *,
    marker: str | None = None,
    ignore_case: bool = False,
    unlabelled_only: bool = False,
    min_share: Share = 0.0,
) -> list[float | None]:
    """1 where the answer is the one most of its group give, else 0 (TTRL, Zuo et al. 2025).

    `marker` and `ignore_case` are those of `answers.exact`. `unlabelled_only`: rows with an answer cannot be scored.
    A group whose winner has less than `min_share` of the completions cannot be scored.
    """
    answers = [answer_of(text, marker, ignore_case) for text in completions]
    found = _elected(answers, [1.0] * len(answers), groups, min_share)
    return [None if unlabelled_only and row["answer"] is not None else s for row, s in zip(rows, found, strict=True)]


def weighted(
    completions: list[str],
    groups: list[int],
    *,
    by: RewardFunction,
    marker: str | None = None,
    ignore_case: bool = False,
    min_share: Share = 0.0,
) -> list[float | None]:
    """As `consensus.majority`, each vote counting as much as the reward `by` says; what `by` cannot score has none.

    `min_share` is of all weights. Raises StepError for a negative weight.
    """
    voice: Inner = by
    weights = [weight or 0.0 for weight in asked(voice, range(len(completions)))]
    if min(weights, default=0.0) < 0:
        raise StepError(f"consensus.weighted: {voice.bound.name} gives a negative weight; votes count 0 or more")
    return _elected([answer_of(text, marker, ignore_case) for text in completions], weights, groups, min_share)


def crowd(
    rows: list[Row],
    completions: list[str],
    groups: list[int],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    others: Annotated[list[PolicyRef], Field(min_length=1)],
    marker: str | None = None,
    ignore_case: bool = False,
) -> list[float | None]:
    """1 where the answer is the one that several models elect, each heard by its self-consistency (RLCCF 2025).

    Every model of `others` answers the same problem as often as the policy, at the same temperature; see `collective`.
    """
    members = _members(groups)
    firsts = {group: rows[places[0]]["prompt"] for group, places in members.items()}
    mine = [answer_of(text, marker, ignore_case) for text in completions]
    answers_of = {group: [[mine[i] for i in places]] for group, places in members.items()}
    sampling = Sampling(sampler.sampling.temperature, sampler.sampling.max_new_tokens)
    for folder in others:
        for size in sorted({len(places) for places in members.values()}):
            chosen = [group for group, places in members.items() if len(places) == size]
            said = replies(guest(folder), [firsts[g] for g in chosen], n=size, sampling=sampling, rng=rng)
            for group, texts in zip(chosen, said, strict=True):
                answers_of[group].append([answer_of(text, marker, ignore_case) for text in texts or []])
    labels = {group: elected(collective(of_models)) for group, of_models in answers_of.items()}
    return [None if labels[g] is None else float(labels[g] == a) for g, a in zip(groups, mine, strict=True)]


def collective(answers_of: Sequence[Sequence[Hashable | None]]) -> dict[Hashable, float]:
    """Votes of several models for each answer: a model's votes count its self-consistency, the share of its top answer.

    The order of the answers is that in which they were first given; None is no answer.
    """
    votes: dict[Hashable, float] = {}
    for answers in answers_of:
        counts = Counter(answer for answer in answers if answer is not None)
        consistency = max(counts.values(), default=0) / max(len(answers), 1)
        for answer, count in counts.items():
            votes[answer] = votes.get(answer, 0.0) + consistency * count
    return votes


def elected(votes: Mapping[Hashable, float]) -> Hashable | None:
    """The answer with the most votes, the first of equals; None where nobody votes."""
    top = max(votes.values(), default=0.0)
    return next((answer for answer, count in votes.items() if count == top and count > 0), None)


def answer_of(completion: str, marker: str | None, ignore_case: bool) -> Hashable | None:
    """The final answer in normal form; None where there is none."""
    given = final_answer(completion, marker)
    return None if given is None or not given.strip() else normal(given, ignore_case)


def _elected(
    answers: Sequence[Hashable | None], weights: Sequence[float], groups: Sequence[int], min_share: float
) -> list[float | None]:
    found: list[float | None] = [None] * len(answers)
    for places in _members(groups).values():
        votes: dict[Hashable, float] = {}
        for i in places:
            if answers[i] is not None:
                votes[answers[i]] = votes.get(answers[i], 0.0) + weights[i]
        winner, total = elected(votes), sum(weights[i] for i in places)
        if winner is not None and votes[winner] >= min_share * total:
            for i in places:
                found[i] = float(answers[i] == winner)
    return found


def _members(groups: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return members
