"""Rewards from a judge: a language model that rates a completion.

The judge is a policy of another stage, the policy in training itself, or a model behind an endpoint. Without a verdict
(the reply cannot be parsed, or the question exceeds the judge's context) the score is None, or `unparsable`.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.api.spending import SpendingAccount
from learning.data.patterns import MatchTimeout, Pattern
from learning.data.questions import make_question
from learning.data.rows import Row
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.verdicts import guest, replies, word_logprobs
from schemas.endpoint import Endpoint
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EngineUse

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
    """Rating by a policy of another stage, scaled from `low` … `high` to 0 … 1.

    The judge is asked `template` with {prompt}, {completion} and {answer} filled in; its verdict is the last match of
    `pattern` (its first group, if any), the mean over `votes` replies. With `words` nothing is sampled: the verdict is
    the mean of the words' scores, weighted by the judge's probability of each word. `unparsable` is the score without a
    verdict (null: it cannot be scored). `engine` null is torch.
    """
    reader = _Judge(template, pattern, low, high, words, votes, temperature, max_completion_length, unparsable)
    return reader.rate(guest(judge, engine), rows, completions, rng)


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
    """Rating by the policy in training, with its current weights; options as those of `judges.model`."""
    reader = _Judge(template, pattern, low, high, words, votes, temperature, max_completion_length, unparsable)
    return reader.rate(sampler, rows, completions, rng)


def endpoint(
    rows: list[Row],
    completions: list[str],
    account: SpendingAccount,
    *,
    endpoint: Endpoint,
    system: str | None = None,
    template: str = TEMPLATE,
    pattern: str = PATTERN,
    low: float = 0.0,
    high: float = 10.0,
    votes: Annotated[int, Field(ge=1)] = 1,
    verdict: Literal["majority", "mean"] = "majority",
    temperature: Annotated[float, Field(ge=0)] = 0.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 256,
    unparsable: float | None = None,
) -> list[float | None]:
    """Rating by a chat model behind an endpoint, scaled from `low` … `high` to 0 … 1.

    It is asked `template` (a rubric) with {prompt}, {completion} and {answer} filled in, after `system`, and its reply
    is parsed as in `judges.model`. Of several `votes`, `majority` takes the most frequent verdict (none in a tie),
    `mean` their mean. Answers are stored and reused for equal questions, so that judging again costs nothing.
    """
    reader = _Judge(template, pattern, low, high, None, votes, temperature, max_completion_length, unparsable, verdict)
    return reader.rate_remotely(endpoint, account, system, rows, completions)


class _Judge:
    """The questions for a judge and the parsing of its replies."""

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
        verdict: str = "mean",
    ) -> None:
        if high <= low:
            raise StepError(f"reward judges: high ({high}) must be above low ({low})")
        if "{completion}" not in template:
            raise StepError("reward judges: `template` has no {completion}; add it")
        if votes > 1 and temperature == 0:
            raise StepError("reward judges: several `votes` at temperature 0 are all equal; set `temperature`")
        try:
            self.pattern = Pattern(pattern)
        except re.error as error:
            raise StepError(f"reward judges: invalid pattern {pattern!r}: {error}") from error
        self.template, self.low, self.high, self.words = template, low, high, words
        self.votes, self.sampling, self.unparsable = votes, Sampling(temperature, max_new_tokens), unparsable
        self.verdict = verdict

    def rate(
        self, judge: Sampler, rows: Sequence[Row], completions: Sequence[str], rng: np.random.Generator
    ) -> list[float | None]:
        """Return a score for every completion."""
        questions = [make_question(self.template, row, completion=c) for row, c in zip(rows, completions, strict=True)]
        if self.words:
            shares = word_logprobs(judge, questions, list(self.words))
            values = [None if lps is None else compute_expected(lps, list(self.words.values())) for lps in shares]
        else:
            answers = replies(judge, questions, n=self.votes, sampling=self.sampling, rng=rng)
            values = [None if texts is None else self.parse(texts) for texts in answers]
        return self.rescale(values)

    def rate_remotely(
        self,
        endpoint: Endpoint,
        account: SpendingAccount,
        system: str | None,
        rows: Sequence[Row],
        completions: Sequence[str],
    ) -> list[float | None]:
        """Return the scores of a remote judge; raise StepError as `learning.api.client.ask` does."""
        from learning.api.client import ask  # imported here because it takes a second and most judges are local
        from learning.api.requests import Answer, make_chat_question

        prefix = [{"role": "system", "content": system}] if system is not None else []
        options = {"temperature": self.sampling.temperature, "max_tokens": self.sampling.max_new_tokens}
        prompts = [
            [*prefix, *make_question(self.template, r, completion=c)] for r, c in zip(rows, completions, strict=True)
        ]
        questions = [
            make_chat_question(messages, vote, **options) for messages in prompts for vote in range(self.votes)
        ]
        answers = ask(endpoint, account, questions).answers
        texts = [answer.text if isinstance(answer, Answer) else "" for answer in answers]
        groups = [texts[start : start + self.votes] for start in range(0, len(texts), self.votes)]
        return self.rescale([self.parse(group) for group in groups])

    def rescale(self, values: Sequence[float | None]) -> list[float | None]:
        """Return the values scaled from the judge's range to 0 … 1."""
        return [self.unparsable if v is None else (v - self.low) / (self.high - self.low) for v in values]

    def parse(self, texts: Sequence[str]) -> float | None:
        """Return the mean or majority of the verdicts that can be parsed and are in range; None if there is none."""
        values = [v for v in (parse_number(text, self.pattern) for text in texts) if v is not None]
        values = [v for v in values if self.low <= v <= self.high]
        if self.verdict == "mean":
            return sum(values) / len(values) if values else None
        ranked = Counter(values).most_common(2)
        return None if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


def parse_number(text: str, pattern: Pattern) -> float | None:
    """Return the number of the last match of a pattern (its first group, if any); None without one in time."""
    try:
        return float(pattern.last(text))  # type: ignore[arg-type] — no match is no number
    except (MatchTimeout, ValueError, TypeError):
        return None


def compute_expected(logprobs: Sequence[float], values: Sequence[float]) -> float:
    """Return the mean of values weighted by probabilities that need not sum to 1."""
    top = max(logprobs)
    shares = [math.exp(lp - top) for lp in logprobs]
    return sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)
