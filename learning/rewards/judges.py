"""Rewards from a judge: a language model is shown a completion and says what it is worth.

The judge is a policy that another stage made, or the policy in training itself. A verdict that cannot be read, or a
question that the judge has no room for, is no verdict: None, or a floor if the recipe says so.
"""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.engines.protocol import Sampling
from learning.questions import question
from learning.rollout import Sampler
from learning.verdicts import guest, replies, word_logprobs
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EngineUse

Row = dict[str, Any]
TEMPLATE = "Problem: {prompt}\nAnswer: {completion}\nRate the answer from 0 to 10:"
PATTERN = r"[+-]?\d+(?:\.\d+)?"


def model(
    rows: list[Row],
    completions: list[str],
    rng: np.random.Generator,
    *,
    judge: PolicyRef,
    engine: EngineUse | None = None,
    template: str = TEMPLATE,
    pattern: str = PATTERN,
    low: float = 0.0,
    high: float = 10.0,
    words: dict[str, float] | None = None,
    votes: Annotated[int, Field(ge=1)] = 1,
    temperature: Annotated[float, Field(ge=0)] = 0.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 16,
    unparsable: float | None = None,
) -> list[float | None]:
    """Verdict of a policy of another stage, from `low` to `high` brought to 0 to 1.

    The judge is asked `template` with {prompt}, {completion} and {answer} filled in; its verdict is the last match of
    `pattern` (its first group, if any), the mean over `votes` replies. With `words` nothing is sampled: the verdict is
    the mean of the words' scores weighted by how likely the judge would reply each. `unparsable` is the score where
    there is no verdict (null: it cannot be scored). `engine` null is torch.
    """
    how = _Reading(template, pattern, low, high, words, votes, temperature, max_completion_length, unparsable)
    return how.verdicts(guest(judge, engine), rows, completions, rng)


def own(
    rows: list[Row],
    completions: list[str],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    template: str = TEMPLATE,
    pattern: str = PATTERN,
    low: float = 0.0,
    high: float = 10.0,
    words: dict[str, float] | None = None,
    votes: Annotated[int, Field(ge=1)] = 1,
    temperature: Annotated[float, Field(ge=0)] = 0.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 16,
    unparsable: float | None = None,
) -> list[float | None]:
    """Verdict of the policy in training on its own completions, as it is now; options as those of `judges.model`."""
    how = _Reading(template, pattern, low, high, words, votes, temperature, max_completion_length, unparsable)
    return how.verdicts(sampler, rows, completions, rng)


class _Reading:
    """How a judge is asked and its words are read."""

    def __init__(
        self,
        template: str,
        pattern: str,
        low: float,
        high: float,
        words: dict[str, float] | None,
        votes: int,
        temperature: float,
        max_new_tokens: int,
        unparsable: float | None,
    ) -> None:
        if high <= low:
            raise StepError(f"judge: high ({high}) must exceed low ({low})")
        if "{completion}" not in template:
            raise StepError("judge: the template shows no {completion}")
        if votes > 1 and temperature == 0:
            raise StepError("judge: several votes at temperature 0 are all the same; set `temperature`")
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise StepError(f"judge: pattern {pattern!r}: {error}") from error
        self.template, self.low, self.high, self.words = template, low, high, words
        self.votes, self.sampling, self.unparsable = votes, Sampling(temperature, max_new_tokens), unparsable

    def verdicts(
        self, judge: Sampler, rows: Sequence[Row], completions: Sequence[str], rng: np.random.Generator
    ) -> list[float | None]:
        """One for every completion."""
        asked = [question(self.template, row, completion=c) for row, c in zip(rows, completions, strict=True)]
        if self.words:
            shares = word_logprobs(judge, asked, list(self.words))
            found = [None if lps is None else expected(lps, list(self.words.values())) for lps in shares]
        else:
            said = replies(judge, asked, n=self.votes, sampling=self.sampling, rng=rng)
            found = [None if texts is None else self.read(texts) for texts in said]
        return [self.unparsable if v is None else (v - self.low) / (self.high - self.low) for v in found]

    def read(self, texts: Sequence[str]) -> float | None:
        """Mean of the verdicts that can be read and lie in range; None where there is none."""
        values = [v for v in (number(text, self.pattern) for text in texts) if v is not None]
        values = [v for v in values if self.low <= v <= self.high]
        return sum(values) / len(values) if values else None


def number(text: str, pattern: re.Pattern[str]) -> float | None:
    """The number of the last match of a pattern (its first group, if any); None where there is none."""
    found = [match[1] if pattern.groups else match[0] for match in pattern.finditer(text)]
    try:
        return float(found[-1])
    except (IndexError, ValueError, TypeError):
        return None


def expected(logprobs: Sequence[float], values: Sequence[float]) -> float:
    """Mean of values weighted by probabilities that need not sum to 1."""
    top = max(logprobs)
    shares = [math.exp(lp - top) for lp in logprobs]
    return sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)
