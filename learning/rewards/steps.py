"""Rewards for the steps of a solution, and for a critic that looks for the first wrong step.

Steps count from 0; −1 means no mistake.
"""

import json
import re
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row
from learning.samples.engine_protocol import Sampling
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EngineUse

CLEAN = -1
"""The place of the first mistake in a solution without mistakes."""

DIGITS = 300
"""Limit for numbers that are parsed: Python's conversion is slow for long ones and refuses thousands of digits."""
NUMBER = re.compile(rf"-?\d{{1,{DIGITS}}}")
STEP = re.compile(rf"(-\d{{1,{DIGITS}}}|(?<!\d)\d{{1,{DIGITS}}}) ([+-]) (\d{{1,{DIGITS}}}) = (-?\d{{1,{DIGITS}}})")
"""A number matches only from its first digit, so that the search is linear in the length of the text."""


def distance(rows: list[Row], completions: list[str], *, floor: float | None = -1.0) -> list[float | None]:
    """Reward of a critic by the distance of its first wrong step from the row's answer (FAPO 2025).

    1 if both say that there is none, −1 if only one does, else 1 − |predicted − true| / steps. A text that is not a
    step of the solution gets `floor` (null: it cannot be scored). Raise StepError if the row's metadata has no number
    of steps.
    """
    return [_score_distance(row, completion, floor) for row, completion in zip(rows, completions, strict=True)]


def _score_distance(row: Row, completion: str, floor: float | None) -> float | None:
    try:
        steps = int(json.loads(row["metadata"] or "{}")["steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(
            f"reward steps.distance: the metadata of row {row['id']} has no number of `steps`; add it"
        ) from error
    if row["answer"] is None:
        return None
    true, predicted = parse_place(row["answer"]), parse_place(completion)
    if true is None:
        raise StepError(
            f"reward steps.distance: the answer of row {row['id']}, {row['answer'][:40]!r}, is not the index of a step"
        )
    if predicted is None or not CLEAN <= predicted < steps:
        return floor
    if (true == CLEAN) != (predicted == CLEAN):
        return -1.0
    return 1.0 - abs(predicted - true) / steps


def sound(
    rows: list[Row],
    completions: list[str],
    rng: np.random.Generator,
    *,
    judge: PolicyRef,
    engine: EngineUse | None = None,
    template: str = "check {completion}",
    max_completion_length: Annotated[int, Field(ge=1)] = 8,
) -> list[float | None]:
    """1 if a critic (a policy of another stage) finds no wrong step, 0 if it names one.

    None if the critic's reply is not an index or the question exceeds its context. `engine` null is torch.
    """
    questions = [make_question(template, row, completion=c) for row, c in zip(rows, completions, strict=True)]
    answers = replies(guest(judge, engine), questions, n=1, sampling=Sampling(0.0, max_completion_length), rng=rng)
    places = [None if texts is None else parse_place(texts[0]) for texts in answers]
    return [None if place is None or place < CLEAN else float(place == CLEAN) for place in places]


def arithmetic(completions: list[str]) -> list[float | None]:
    """1 if every step `a + b = c` of the completion is right and continues the one before, else 0; 0 without a step.

    0 also if a number has more than 300 digits.
    """
    scores: list[float | None] = []
    for text in completions:
        if any(len(digits) > DIGITS for digits in re.findall(r"\d+", text)):
            scores.append(0.0)
            continue
        steps = [(int(a), int(b) if sign == "+" else -int(b), int(c)) for a, sign, b, c in STEP.findall(text)]
        right = all(a + b == c for a, b, c in steps) and all(old[2] == new[0] for old, new in pairwise(steps))
        scores.append(float(bool(steps) and right))
    return scores


def parse_place(text: str) -> int | None:
    """Return the number that a text consists of; None for other texts and more than 300 digits."""
    return int(text) if NUMBER.fullmatch(text := text.strip()) else None
