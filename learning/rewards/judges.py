"""Rewards from a judge: a language model is shown a completion and says what it is worth.

The judge is a policy that another stage made, the policy in training itself, or a model behind an endpoint. A verdict
that cannot be read, or a question that the judge has no room for, is no verdict: None, or a floor if the recipe says
so.
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
    """Verdict of a policy of another stage, from `low` to `high` brought to 0 to 1.

    The judge is asked `template` with {prompt}, {completion} and {answer} filled in; its verdict is the last match of
    `pattern` (its first group, if any), the mean over `votes` replies. With `words` nothing is sampled: the verdict is
    the mean of the words' scores weighted by how likely the judge would reply each. `unparsable` is the score where
    there is no verdict (null: it cannot be scored). `engine` null is torch.
    """
    how = _Judge(template, pattern, low, high, words, votes, temperature, max_completion_length, unparsable)
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
    how = _Judge(template, pattern, low, high, words, votes, temperature, max_completion_length, unparsable)
    return how.verdicts(sampler, rows, completions, rng)


def endpoint(
    rows: list[Row],
    completions: list[str],
    desk: SpendingAccount,
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
    """Verdict of a chat model behind an endpoint, from `low` to `high` brought to 0 to 1.

    It is asked `template` (a rubric) with {prompt}, {completion} and {answer} filled in, after `system`, and read as
    `judges.model` is. Of several `votes` that can be read, `majority` takes the verdict that is given most often (none
    where two are), `mean` their mean. Equal questions have one answer, which is kept: judging again costs nothing.
    """
    how = _Judge(template, pattern, low, high, None, votes, temperature, max_completion_length, unparsable, verdict)
    return how.asked(endpoint, desk, system, rows, completions)


class _Judge:
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
        verdict: str = "mean",
    ) -> None:
        if high <= low:
            raise StepError(f"judge: high ({high}) must exceed low ({low})")
        if "{completion}" not in template:
            raise StepError("judge: the template shows no {completion}")
        if votes > 1 and temperature == 0:
            raise StepError("judge: several votes at temperature 0 are all the same; set `temperature`")
        try:
            self.pattern = Pattern(pattern)
        except re.error as error:
            raise StepError(f"judge: pattern {pattern!r}: {error}") from error
        self.template, self.low, self.high, self.words = template, low, high, words
        self.votes, self.sampling, self.unparsable = votes, Sampling(temperature, max_new_tokens), unparsable
        self.verdict = verdict

    def verdicts(
        self, judge: Sampler, rows: Sequence[Row], completions: Sequence[str], rng: np.random.Generator
    ) -> list[float | None]:
        """One for every completion."""
        asked = [make_question(self.template, row, completion=c) for row, c in zip(rows, completions, strict=True)]
        if self.words:
            shares = word_logprobs(judge, asked, list(self.words))
            found = [None if lps is None else compute_expected(lps, list(self.words.values())) for lps in shares]
        else:
            said = replies(judge, asked, n=self.votes, sampling=self.sampling, rng=rng)
            found = [None if texts is None else self.read(texts) for texts in said]
        return self.scaled(found)

    def asked(
        self,
        endpoint: Endpoint,
        desk: SpendingAccount,
        system: str | None,
        rows: Sequence[Row],
        completions: Sequence[str],
    ) -> list[float | None]:
        """Verdicts of a remote judge. Raises StepError as `learning.api.client.ask` does."""
        from learning.api.client import ask  # it takes a second to import, and most judges are at hand
        from learning.api.requests import Answer, make_chat_question

        before = [{"role": "system", "content": system}] if system is not None else []
        how = {"temperature": self.sampling.temperature, "max_tokens": self.sampling.max_new_tokens}
        shown = [
            [*before, *make_question(self.template, r, completion=c)] for r, c in zip(rows, completions, strict=True)
        ]
        questions = [make_chat_question(messages, vote, **how) for messages in shown for vote in range(self.votes)]
        answers = ask(endpoint, desk, questions).answers
        texts = [answer.text if isinstance(answer, Answer) else "" for answer in answers]
        groups = [texts[start : start + self.votes] for start in range(0, len(texts), self.votes)]
        return self.scaled([self.read(group) for group in groups])

    def scaled(self, found: Sequence[float | None]) -> list[float | None]:
        """From the judge's scale to 0 to 1."""
        return [self.unparsable if v is None else (v - self.low) / (self.high - self.low) for v in found]

    def read(self, texts: Sequence[str]) -> float | None:
        """What the verdicts that can be read and lie in range come to; None where there is none, or no majority."""
        values = [v for v in (parse_number(text, self.pattern) for text in texts) if v is not None]
        values = [v for v in values if self.low <= v <= self.high]
        if self.verdict == "mean":
            return sum(values) / len(values) if values else None
        ranked = Counter(values).most_common(2)
        return None if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


def parse_number(text: str, pattern: Pattern) -> float | None:
    """The number of the last match of a pattern (its first group, if any); None where there is none in time."""
    try:
        return float(pattern.last(text))  # type: ignore[arg-type] — no match is no number
    except (MatchTimeout, ValueError, TypeError):
        return None


def compute_expected(logprobs: Sequence[float], values: Sequence[float]) -> float:
    """Mean of values weighted by probabilities that need not sum to 1."""
    top = max(logprobs)
    shares = [math.exp(lp - top) for lp in logprobs]
    return sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)
