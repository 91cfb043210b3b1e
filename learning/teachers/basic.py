"""Teachers: functions that write a completion for a prompts row, or return the inquiry for a remote model.

A teacher may err on purpose (`error_rate`), so that a model trained on it can still be improved by reinforcement
learning.
"""

import re
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.patterns import Pattern
from learning.data.questions import Inquiry, make_question
from learning.data.rows import Row
from learning.data.text_edits import mistaken
from schemas.endpoint import Endpoint
from schemas.errors import StepError

Rate = Annotated[float, Field(ge=0, le=1)]


def answer(row: Row, rng: np.random.Generator, *, marker: str = "", error_rate: Rate = 0.0) -> str:
    """Write the answer alone, after `marker` if it is set."""
    if row["answer"] is None:
        raise StepError(f"teacher answer: row {row['id']} has no answer")
    text = row["answer"]
    if rng.random() < error_rate:
        text = mistaken(text, rng)
    return f"{marker} {text}".strip()


def endpoint(
    row: Row,
    rng: np.random.Generator,
    *,
    endpoint: Endpoint,
    system: str | None = None,
    template: str | None = None,
    pattern: str | None = None,
) -> Inquiry:
    """Ask a chat model behind an endpoint for `num_generations` replies, of which the stage keeps those that pass.

    The model receives `system` and the problem's messages, or `template` with {prompt} and {answer} filled in. The
    completion is the last match of `pattern` in a reply (its first group, if any; null: the entire reply).
    """
    messages = make_question(template, row) if template is not None else row["prompt"]
    before = [{"role": "system", "content": system}] if system is not None else []
    try:
        return Inquiry(endpoint, [*before, *messages], None if pattern is None else Pattern(pattern, re.DOTALL))
    except re.error as error:
        raise StepError(f"teacher endpoint: invalid pattern {pattern!r}: {error}") from error


def styled(row: Row, rng: np.random.Generator, *, styles: list[str], error_rate: Rate = 0.0) -> str:
    """Write the answer in a random one of `styles`, templates with {answer}."""
    text = answer(row, rng, error_rate=error_rate)
    return styles[int(rng.integers(len(styles)))].replace("{answer}", text)


def one_of(row: Row, rng: np.random.Generator, *, texts: Annotated[list[str], Field(min_length=1)]) -> str:
    """Write one of `texts`, each equally often."""
    return texts[int(rng.integers(len(texts)))]


def one_shown(row: Row, rng: np.random.Generator, *, pattern: str) -> str:
    """Write a text that matches `pattern` in the last line of the prompt that has any: a legal move that a game lists.

    Each match is written equally often, or the group of the pattern if it has one. Raise StepError if nothing matches.
    """
    form = Pattern(pattern)
    for message in reversed(row["prompt"]):
        for line in reversed(str(message["content"]).splitlines()):
            matches: list[str] = []
            while match := form.search(line):
                matches.append(match[1] if form.groups else match[0])
                line = line[max(1, match.end()) :]
            if matches:
                return matches[int(rng.integers(len(matches)))]
    raise StepError(f"teacher one_shown: row {row['id']}: nothing in its prompt matches {pattern!r}")
