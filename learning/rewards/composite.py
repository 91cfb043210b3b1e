"""Rewards composed of rewards: gated, tiered, first available, weighted sum, one per family of problems.

The list of a stage's rewards is already a weighted sum; these are for other compositions. A reward named by an option
scores only the completions that need it, so that an expensive one (a judge) can follow a cheap one. A completion that
cannot be scored has None, never 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.lookup import Inner, Overlay, RewardFunction
from learning.sampling.scoring import PER_COMPLETION, sum_scores
from schemas.errors import StepError


def score_selected(reward: Inner, places: Sequence[int]) -> list[float | None]:
    """Return weight times score of a reward for the completions at `places`; raise StepError if scores are missing."""
    if not places:
        return []
    selected = {name: [reward.supplies[name][i] for i in places] for name in PER_COMPLETION if name in reward.supplies}
    scores = reward(**selected)
    if len(scores) != len(places):
        raise StepError(
            f"reward {reward.bound.name}: {len(scores)} scores for {len(places)} completions; return one per completion"
        )
    return [None if s is None or s != s else reward.weight * float(s) for s in scores]


def gated(
    completions: list[str], *, of: RewardFunction, by: RewardFunction, at_least: float = 1.0, otherwise: float = 0.0
) -> list[float | None]:
    """The reward `of` where the reward `by` is at least `at_least`, else `otherwise`; `of` scores only the former."""
    conditions = score_selected(by, range(len(completions)))
    passing = [i for i, score in enumerate(conditions) if score is not None and score >= at_least]
    results: list[float | None] = [None if score is None else otherwise for score in conditions]
    for i, score in zip(passing, score_selected(of, passing), strict=True):
        results[i] = score
    return results


def tiered(
    completions: list[str],
    *,
    of: Annotated[list[RewardFunction], Field(min_length=1)],
    scores: Annotated[list[float], Field(min_length=2)],
    at_least: float = 1.0,
) -> list[float | None]:
    """Score by the first reward below `at_least`: `scores[0]` if the first reward fails, the last if none does.

    A reward scores only completions that passed the ones before it. Raise StepError unless there is one more of
    `scores` than of rewards.
    """
    if len(scores) != len(of) + 1:
        raise StepError(f"reward composite.tiered: {len(of)} rewards need {len(of) + 1} `scores`, not {len(scores)}")
    results: list[float | None] = [scores[-1]] * len(completions)
    remaining = list(range(len(completions)))
    for reward, earned in zip(of, scores, strict=False):
        judged = dict(zip(remaining, score_selected(reward, remaining), strict=True))
        for i, score in judged.items():
            if score is None or score < at_least:
                results[i] = None if score is None else earned
        remaining = [i for i, score in judged.items() if score is not None and score >= at_least]
    return results


def inside(
    completions: list[str],
    *,
    of: RewardFunction,
    tag: Annotated[str, Field(min_length=1)] = "answer",
    otherwise: float = 0.0,
) -> list[float | None]:
    """The reward `of` for the text in the last `<answer>…</answer>` alone; `otherwise` for a completion without one.

    `tag` names another tag.
    """
    closed = [completion.rpartition(f"</{tag}>")[0].rpartition(f"<{tag}>") for completion in completions]
    places = [i for i, (_, opened, _) in enumerate(closed) if opened]
    texts = list(completions)
    for i in places:
        texts[i] = closed[i][2].strip()
    task: Inner = of
    supplies = Overlay(task.supplies, {"completions": texts})
    results: list[float | None] = [otherwise] * len(completions)
    for i, score in zip(places, score_selected(replace(task, supplies=supplies), places), strict=True):
        results[i] = score
    return results


def first(completions: list[str], *, of: Annotated[list[RewardFunction], Field(min_length=1)]) -> list[float | None]:
    """The first reward that can score the completion; later rewards score only the rest."""
    results: list[float | None] = [None] * len(completions)
    for reward in of:
        unscored = [i for i, score in enumerate(results) if score is None]
        for i, score in zip(unscored, score_selected(reward, unscored), strict=True):
            results[i] = score
    return results


def weighted(completions: list[str], *, of: Annotated[list[RewardFunction], Field(min_length=1)]) -> list[float | None]:
    """Weighted sum of rewards, for use inside another reward; one of weight 0 is not computed."""
    used = [reward for reward in of if reward.weight != 0]
    terms = [score_selected(reward, range(len(completions))) for reward in used]
    may_lack = [reward.bound.optional for reward in used]
    if not used:
        return [0.0] * len(completions)
    return [sum_scores(of_one, [1.0] * len(used), may_lack) for of_one in zip(*terms, strict=True)]


def routed(
    rows: list[Row],
    *,
    families: Annotated[dict[str, RewardFunction], Field(min_length=1)],
    otherwise: RewardFunction | None = None,
) -> list[float | None]:
    """A different reward for each family of problems.

    Other families get the reward `otherwise` (null: they cannot be scored).
    """
    results: list[float | None] = [None] * len(rows)
    names = [row["family"] if row["family"] in families else None for row in rows]
    for family, reward in (*families.items(), (None, otherwise)):
        places = [i for i, name in enumerate(names) if name == family]
        if reward is not None:
            for i, score in zip(places, score_selected(reward, places), strict=True):
                results[i] = score
    return results
