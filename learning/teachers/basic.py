"""Teachers: each writes a completion for a prompts row, with a generator of its own randomness, or says whom to ask.

A teacher may err on purpose (`error_rate`), so that what is learnt from it leaves room for reinforcement learning.
"""

import re
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.patterns import Pattern
from learning.data.questions import Inquiry, make_question
from learning.data.text_edits import mistaken
from learning.toy_tasks.sums import sum_of
from schemas.endpoint import Endpoint
from schemas.errors import StepError

Rate = Annotated[float, Field(ge=0, le=1)]


def answer(row: dict[str, Any], rng: np.random.Generator, *, marker: str = "", error_rate: Rate = 0.0) -> str:
    """The answer alone, after `marker` if there is one."""
    if row["answer"] is None:
        raise StepError(f"teacher answer: row {row['id']} has no answer")
    text = row["answer"]
    if rng.random() < error_rate:
        text = mistaken(text, rng)
    return f"{marker} {text}".strip()


def endpoint(
    row: dict[str, Any],
    rng: np.random.Generator,
    *,
    endpoint: Endpoint,
    system: str | None = None,
    template: str | None = None,
    pattern: str | None = None,
) -> Inquiry:
    """A chat model behind an endpoint: the stage asks for `num_generations` replies and keeps those that pass.

    The model is given `system` and the problem's messages, or `template` with {prompt} and {answer} filled in. What is
    kept of a reply is the last match of `pattern` (its first group, if any; null: the whole reply).
    """
    asked = make_question(template, row) if template is not None else row["prompt"]
    before = [{"role": "system", "content": system}] if system is not None else []
    try:
        return Inquiry(endpoint, [*before, *asked], None if pattern is None else Pattern(pattern, re.DOTALL))
    except re.error as error:
        raise StepError(f"teacher endpoint: pattern {pattern!r}: {error}") from error


def styled(row: dict[str, Any], rng: np.random.Generator, *, styles: list[str], error_rate: Rate = 0.0) -> str:
    """The answer in one of `styles` at random, which are templates with {answer}."""
    text = answer(row, rng, error_rate=error_rate)
    return styles[int(rng.integers(len(styles)))].replace("{answer}", text)


def worked_sum(row: dict[str, Any], rng: np.random.Generator, *, marker: str = "####", error_rate: Rate = 0.0) -> str:
    """The running totals of a sum, then the answer: `12 + 7 - 3 =` becomes `12 + 7 = 19, 19 - 3 = 16 #### 16`.

    An error slips into one total and is carried on. Raises StepError when the prompt ends with no sum.
    """
    numbers, signs = sum_of(row)
    slip = int(rng.integers(len(signs))) if rng.random() < error_rate else -1
    total, steps = numbers[0], []
    for i, (sign, number) in enumerate(zip(signs, numbers[1:], strict=True)):
        result = total + number if sign == "+" else total - number
        if i == slip:
            result += int(rng.choice([-2, -1, 1, 2]))
        steps.append(f"{total} {sign} {number} = {result}")
        total = result
    return f"{', '.join(steps)} {marker} {total}"


def worked_spelling(
    row: dict[str, Any], rng: np.random.Generator, *, marker: str = "####", error_rate: Rate = 0.0
) -> str:
    """A word letter by letter, the same backward, then the answer: `sun` becomes `s-u-n, n-u-s #### nus`."""
    word = row["prompt"][-1]["content"].rpartition(": ")[2].strip()
    back = word[::-1]
    if rng.random() < error_rate:
        back = mistaken(back, rng)
    return f"{'-'.join(word)}, {'-'.join(back)} {marker} {back}"
