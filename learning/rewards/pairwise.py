"""Rewards by comparison: the share of its group that a completion wins against.

A draw is half a win. Pairs that cannot be judged are skipped; a completion without a judged pair cannot be scored.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row
from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import score_selected
from learning.rewards.judges import compute_expected
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest, replies, word_logprobs
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EngineUse

TEMPLATE = "Problem: {prompt}\nAnswer 1: {first}\nAnswer 2: {second}\nThe better answer is number"


def win_rate(
    completions: list[str],
    groups: list[int],
    *,
    of: RewardFunction,
    scale: Annotated[float, Field(gt=0)] | None = None,
) -> list[float | None]:
    """Win rate against the rest of the group by another reward: the higher score wins, or by Bradley-Terry.

    With `scale` a win counts σ((a − b)/scale), which suits a learned reward; null: 1, ½ or 0.
    """
    judge: Inner = of
    scores = score_selected(judge, range(len(completions)))

    def win(i: int, j: int) -> float | None:
        a, b = scores[i], scores[j]
        if a is None or b is None:
            return None
        return (a > b) + 0.5 * (a == b) if scale is None else (1 + math.tanh((a - b) / scale / 2)) / 2

    return compute_mean_wins(groups, win)


def judged(
    rows: list[Row],
    completions: list[str],
    groups: list[int],
    rng: np.random.Generator,
    *,
    judge: PolicyRef,
    engine: EngineUse | None = None,
    template: str = TEMPLATE,
    first: str = "1",
    second: str = "2",
    likely: bool = True,
    max_completion_length: Annotated[int, Field(ge=1)] = 8,
) -> list[float | None]:
    """Win rate against the rest of the group, judged by a policy of another stage, each pair in both orders.

    The judge is asked `template` with {prompt}, {answer}, {first} and {second}; its verdict is the word `first` or
    `second`: with `likely` the relative probability of the two, else the one in its greedy reply.
    """
    comparison = _Comparison(template, first, second, likely, max_completion_length)
    return comparison.compute_win_rates(guest(judge, engine), rows, completions, groups, rng)


def own_judged(
    rows: list[Row],
    completions: list[str],
    groups: list[int],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    template: str = TEMPLATE,
    first: str = "1",
    second: str = "2",
    likely: bool = True,
    max_completion_length: Annotated[int, Field(ge=1)] = 8,
) -> list[float | None]:
    """Win rate against the rest of the group, judged by the policy in training; options as `pairwise.judged`."""
    comparison = _Comparison(template, first, second, likely, max_completion_length)
    return comparison.compute_win_rates(sampler, rows, completions, groups, rng)


def compute_mean_wins(groups: Sequence[int], win: Callable[[int, int], float | None]) -> list[float | None]:
    """Return the mean win of each member over the others of its group; `win(i, j)` is None for an unjudged pair."""
    rates: list[float | None] = [None] * len(groups)
    for places in _list_members(groups):
        for i in places:
            wins = [w for j in places if j != i and (w := win(i, j)) is not None]
            rates[i] = sum(wins) / len(wins) if wins else None
    return rates


def _list_members(groups: Sequence[int]) -> list[list[int]]:
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return list(members.values())


class _Comparison:
    """The questions for a judge which of two completions is better, and the parsing of its replies."""

    def __init__(self, template: str, first: str, second: str, likely: bool, max_new_tokens: int) -> None:
        if not {"{first}", "{second}"} <= set(re.findall(r"\{\w+\}", template)):
            raise StepError("reward pairwise: `template` must contain {first} and {second}")
        if first == second or not first or not second:
            raise StepError(
                f"reward pairwise: `first` ({first!r}) and `second` ({second!r}) must be two different words"
            )
        self.template, self.words, self.likely = template, (first, second), likely
        self.sampling = Sampling(0.0, max_new_tokens)
        self.pattern = re.compile("|".join(sorted(map(re.escape, self.words), key=len, reverse=True)))

    def compute_win_rates(
        self,
        judge: Sampler,
        rows: Sequence[Row],
        completions: Sequence[str],
        groups: Sequence[int],
        rng: np.random.Generator,
    ) -> list[float | None]:
        """Return the win rate of every completion."""
        pairs = [(i, j) for places in _list_members(groups) for i in places for j in places if i != j]
        questions = [
            make_question(self.template, rows[i], first=completions[i], second=completions[j]) for i, j in pairs
        ]
        if self.likely:
            shares = word_logprobs(judge, questions, self.words)
            verdicts = [None if lps is None else compute_expected(lps, (1.0, 0.0)) for lps in shares]
        else:
            answers = replies(judge, questions, n=1, sampling=self.sampling, rng=rng)
            verdicts = [None if texts is None else self.parse(texts[0]) for texts in answers]
        verdict_of = dict(zip(pairs, verdicts, strict=True))

        def win(i: int, j: int) -> float | None:
            first, second = verdict_of[i, j], verdict_of[j, i]
            wins = [v for v in (first, None if second is None else 1 - second) if v is not None]
            return sum(wins) / len(wins) if wins else None

        return compute_mean_wins(groups, win)

    def parse(self, text: str) -> float | None:
        """Return 1 if the first of the two words in a reply is `first`, 0 if it is `second`, None without either."""
        match = self.pattern.search(text)
        return None if match is None else float(match[0] == self.words[0])
