"""Rewards without a reference answer: the answer of most completions of a group counts as right.

Answers are compared in the normal form of `answers.exact`. A completion without a final answer casts no vote and gets
0; without votes the group cannot be scored. In a tie the answer that was given first wins.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.lookup import Inner, RewardFunction
from learning.rewards.answers import extract_final_answer, find_boxed, find_last_number, normalise_answer
from learning.rewards.composite import score_selected
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import PolicyRef

Share = Annotated[float, Field(ge=0, le=1)]
Where = Literal["whole", "number", "boxed"]
"""Where a completion has its answer: as a whole or after the marker, its last number, its last `\\boxed{…}`."""


def majority(
    rows: list[Row],
    completions: list[str],
    groups: list[int],
    *,
    marker: str | None = None,
    ignore_case: bool = False,
    where: Where = "whole",
    unlabelled_only: bool = False,
    min_share: Share = 0.0,
) -> list[float | None]:
    """Majority vote: 1 if the answer is the most frequent of its group, else 0 (TTRL, Zuo et al. 2025).

    `marker` and `ignore_case` are those of `answers.exact`; `where` is `number` for the last number of a completion,
    `boxed` for its last box. With `unlabelled_only` rows with an answer are not scored.
    A group whose winner has less than `min_share` of the completions cannot be scored.
    """
    answers = [parse_answer(text, marker, ignore_case, where) for text in completions]
    scores = _score_elected(answers, [1.0] * len(answers), groups, min_share)
    return [None if unlabelled_only and row["answer"] is not None else s for row, s in zip(rows, scores, strict=True)]


def weighted(
    completions: list[str],
    groups: list[int],
    *,
    by: RewardFunction,
    marker: str | None = None,
    ignore_case: bool = False,
    where: Where = "whole",
    min_share: Share = 0.0,
) -> list[float | None]:
    """Weighted vote: as `consensus.majority`, with votes weighted by the reward `by` (0 if it cannot score).

    `min_share` is of the sum of the weights. Raise StepError if a weight is negative.
    """
    weighting: Inner = by
    weights = [weight or 0.0 for weight in score_selected(weighting, range(len(completions)))]
    if min(weights, default=0.0) < 0:
        raise StepError(
            f"reward consensus.weighted: {weighting.bound.name} gives a negative weight; use a reward of 0 or more"
        )
    return _score_elected(
        [parse_answer(text, marker, ignore_case, where) for text in completions], weights, groups, min_share
    )


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
    where: Where = "whole",
) -> list[float | None]:
    """Vote of several models: 1 if the answer is elected, with votes weighted by self-consistency (RLCCF 2025).

    Every model of `others` answers the same problem as often as the policy, at the same temperature. A model's votes
    are weighted by the share of its most frequent answer.
    """
    members = _map_members(groups)
    firsts = {group: rows[places[0]]["prompt"] for group, places in members.items()}
    own_answers = [parse_answer(text, marker, ignore_case, where) for text in completions]
    answers_of = {group: [[own_answers[i] for i in places]] for group, places in members.items()}
    sampling = Sampling(sampler.sampling.temperature, sampler.sampling.max_new_tokens)
    for folder in others:
        for size in sorted({len(places) for places in members.values()}):
            chosen = [group for group, places in members.items() if len(places) == size]
            answers = replies(guest(folder), [firsts[g] for g in chosen], n=size, sampling=sampling, rng=rng)
            for group, texts in zip(chosen, answers, strict=True):
                answers_of[group].append([parse_answer(text, marker, ignore_case, where) for text in texts or []])
    labels = {group: elect(count_weighted_votes(of_models)) for group, of_models in answers_of.items()}
    return [None if labels[g] is None else float(labels[g] == a) for g, a in zip(groups, own_answers, strict=True)]


def count_weighted_votes(answers_of: Sequence[Sequence[Hashable | None]]) -> dict[Hashable, float]:
    """Return the votes of several models by answer, weighted by self-consistency: the share of a model's top answer.

    Answers are in the order in which they were first given; None is not an answer.
    """
    votes: dict[Hashable, float] = {}
    for answers in answers_of:
        counts = Counter(answer for answer in answers if answer is not None)
        consistency = max(counts.values(), default=0) / max(len(answers), 1)
        for answer, count in counts.items():
            votes[answer] = votes.get(answer, 0.0) + consistency * count
    return votes


def elect(votes: Mapping[Hashable, float]) -> Hashable | None:
    """Return the answer with the most votes, the first in a tie; None without votes."""
    top = max(votes.values(), default=0.0)
    return next((answer for answer, count in votes.items() if count == top and count > 0), None)


def parse_answer(completion: str, marker: str | None, ignore_case: bool, where: Where = "whole") -> Hashable | None:
    """Return the final answer in normal form; None without one."""
    if where == "number":
        return find_last_number(completion)
    answer = extract_final_answer(completion, marker) if where == "whole" else find_boxed(completion)
    return None if answer is None or not answer.strip() else normalise_answer(answer, ignore_case)


def _score_elected(
    answers: Sequence[Hashable | None], weights: Sequence[float], groups: Sequence[int], min_share: float
) -> list[float | None]:
    scores: list[float | None] = [None] * len(answers)
    for places in _map_members(groups).values():
        votes: dict[Hashable, float] = {}
        for i in places:
            if answers[i] is not None:
                votes[answers[i]] = votes.get(answers[i], 0.0) + weights[i]
        winner, total = elect(votes), sum(weights[i] for i in places)
        if winner is not None and votes[winner] >= min_share * total:
            for i in places:
                scores[i] = float(answers[i] == winner)
    return scores


def _map_members(groups: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return members
