"""Rewards by comparison: the share of its group that a completion wins against.

Half a win for a draw. A pair that cannot be judged is left out; who has no judged pair cannot be scored.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.question_templates import question
from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import asked
from learning.rewards.judges import expected
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest, replies, word_logprobs
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EngineUse

Row = dict[str, Any]
TEMPLATE = "Problem: {prompt}\nAnswer 1: {first}\nAnswer 2: {second}\nThe better answer is number"


def win_rate(
    completions: list[str],
    groups: list[int],
    *,
    of: RewardFunction,
    scale: Annotated[float, Field(gt=0)] | None = None,
) -> list[float | None]:
    """Mean win over the rest of the group, where the reward `of` says who wins: the higher score, or by Bradley-Terry.

    With `scale` the win is σ((a − b)/scale), which suits a learned reward; null: 1, ½ or 0.
    """
    judge: Inner = of
    scores = asked(judge, range(len(completions)))

    def win(i: int, j: int) -> float | None:
        a, b = scores[i], scores[j]
        if a is None or b is None:
            return None
        return (a > b) + 0.5 * (a == b) if scale is None else (1 + math.tanh((a - b) / scale / 2)) / 2

    return mean_wins(groups, win)


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
    """Mean win over the rest of the group, as a policy of another stage judges: each pair in both orders.

    The judge is asked `template` with {prompt}, {answer}, {first} and {second}; its verdict is the word `first` or
    `second`: with `likely` how likely one is against the other, else the one that its greedy reply names.
    """
    prefer = _Preference(template, first, second, likely, max_completion_length)
    return prefer.wins(guest(judge, engine), rows, completions, groups, rng)


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
    """Mean win over the rest of the group, as the policy in training judges now; options as `pairwise.judged`."""
    prefer = _Preference(template, first, second, likely, max_completion_length)
    return prefer.wins(sampler, rows, completions, groups, rng)


def mean_wins(groups: Sequence[int], win: Callable[[int, int], float | None]) -> list[float | None]:
    """For each member its mean win over the others of its group; `win(i, j)` is None where it cannot be told."""
    found: list[float | None] = [None] * len(groups)
    for places in _members(groups):
        for i in places:
            wins = [w for j in places if j != i and (w := win(i, j)) is not None]
            found[i] = sum(wins) / len(wins) if wins else None
    return found


def _members(groups: Sequence[int]) -> list[list[int]]:
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return list(members.values())


class _Preference:
    """How a judge is asked which of two completions is better."""

    def __init__(self, template: str, first: str, second: str, likely: bool, max_new_tokens: int) -> None:
        if not {"{first}", "{second}"} <= set(re.findall(r"\{\w+\}", template)):
            raise StepError("pairwise: the template must show {first} and {second}")
        if first == second or not first or not second:
            raise StepError(f"pairwise: `first` ({first!r}) and `second` ({second!r}) must be two words")
        self.template, self.words, self.likely = template, (first, second), likely
        self.sampling = Sampling(0.0, max_new_tokens)
        self.pattern = re.compile("|".join(sorted(map(re.escape, self.words), key=len, reverse=True)))

    def wins(
        self,
        judge: Sampler,
        rows: Sequence[Row],
        completions: Sequence[str],
        groups: Sequence[int],
        rng: np.random.Generator,
    ) -> list[float | None]:
        """Mean win of every completion."""
        pairs = [(i, j) for places in _members(groups) for i in places for j in places if i != j]
        asked_of = [question(self.template, rows[i], first=completions[i], second=completions[j]) for i, j in pairs]
        if self.likely:
            shares = word_logprobs(judge, asked_of, self.words)
            verdicts = [None if lps is None else expected(lps, (1.0, 0.0)) for lps in shares]
        else:
            said = replies(judge, asked_of, n=1, sampling=self.sampling, rng=rng)
            verdicts = [None if texts is None else self.read(texts[0]) for texts in said]
        shown_first = dict(zip(pairs, verdicts, strict=True))

        def win(i: int, j: int) -> float | None:
            ahead, behind = shown_first[i, j], shown_first[j, i]
            told = [v for v in (ahead, None if behind is None else 1 - behind) if v is not None]
            return sum(told) / len(told) if told else None

        return mean_wins(groups, win)

    def read(self, text: str) -> float | None:
        """1 where the first of the two words in a reply is `first`, 0 where it is `second`."""
        found = self.pattern.search(text)
        return None if found is None else float(found[0] == self.words[0])
