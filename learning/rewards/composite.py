"""Rewards made of rewards: gated, tiered, the first that can say something, a weighted sum, one per kind of problem.

The list of a stage's rewards is a weighted sum already; these are for everything else. A reward named by an option is
only asked about the completions that it matters for, so that a costly one (a judge) may stand behind a cheap one.
What cannot be scored stays unscorable: None, never 0.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from learning.lookup import Inner, RewardFunction
from learning.sampling.scoring import PER_COMPLETION
from schemas.errors import StepError

Row = dict[str, Any]


def asked(reward: Inner, places: Sequence[int]) -> list[float | None]:
    """Weight times score of a reward, for the completions at `places` only; StepError for another number of scores."""
    if not places:
        return []
    cut = {name: [reward.supplies[name][i] for i in places] for name in PER_COMPLETION if name in reward.supplies}
    scores = reward(**cut)
    if len(scores) != len(places):
        raise StepError(f"reward {reward.bound.name}: {len(scores)} scores for {len(places)} completions")
    return [None if s is None or s != s else reward.weight * float(s) for s in scores]


def gated(
    completions: list[str], *, of: RewardFunction, by: RewardFunction, at_least: float = 1.0, otherwise: float = 0.0
) -> list[float | None]:
    """The reward `of` where the reward `by` is at least `at_least`, else `otherwise`; `of` sees only the former."""
    gate = asked(by, range(len(completions)))
    through = [i for i, score in enumerate(gate) if score is not None and score >= at_least]
    found: list[float | None] = [None if score is None else otherwise for score in gate]
    for i, score in zip(through, asked(of, through), strict=True):
        found[i] = score
    return found


def tiered(
    completions: list[str],
    *,
    of: Annotated[list[RewardFunction], Field(min_length=1)],
    scores: Annotated[list[float], Field(min_length=2)],
    at_least: float = 1.0,
) -> list[float | None]:
    """A ladder: who fails the first reward earns the first score, and so on; who passes all of them earns the last.

    A reward is only asked about those that passed the ones before it. Raises StepError unless there is one score
    more than there are rewards.
    """
    if len(scores) != len(of) + 1:
        raise StepError(f"reward composite.tiered: {len(of)} rewards need {len(of) + 1} `scores`, not {len(scores)}")
    found: list[float | None] = [scores[-1]] * len(completions)
    climbing = list(range(len(completions)))
    for reward, earned in zip(of, scores, strict=False):
        judged = dict(zip(climbing, asked(reward, climbing), strict=True))
        for i, score in judged.items():
            if score is None or score < at_least:
                found[i] = None if score is None else earned
        climbing = [i for i, score in judged.items() if score is not None and score >= at_least]
    return found


def first(completions: list[str], *, of: Annotated[list[RewardFunction], Field(min_length=1)]) -> list[float | None]:
    """The score of the first reward that can say something; one after it is asked only about what is left."""
    found: list[float | None] = [None] * len(completions)
    for reward in of:
        left = [i for i, score in enumerate(found) if score is None]
        for i, score in zip(left, asked(reward, left), strict=True):
            found[i] = score
    return found


def weighted(completions: list[str], *, of: Annotated[list[RewardFunction], Field(min_length=1)]) -> list[float | None]:
    """Sum of rewards, each with its `weight`; for use inside another reward. One of weight 0 is not asked."""
    found: list[float | None] = [0.0] * len(completions)
    for reward in of:
        if reward.weight == 0:
            continue
        scores = asked(reward, range(len(completions)))
        sums = zip(found, scores, strict=True)
        found = [None if total is None or s is None else total + s for total, s in sums]
    return found


def routed(
    rows: list[Row],
    *,
    families: Annotated[dict[str, RewardFunction], Field(min_length=1)],
    otherwise: RewardFunction | None = None,
) -> list[float | None]:
    """For each kind of problem, by the family of its row, a reward of its own.

    Problems of no named family get `otherwise`; null: they cannot be scored.
    """
    found: list[float | None] = [None] * len(rows)
    kinds = [row["family"] if row["family"] in families else None for row in rows]
    for kind, reward in (*families.items(), (None, otherwise)):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        if reward is not None:
            for i, score in zip(mine, asked(reward, mine), strict=True):
                found[i] = score
    return found
