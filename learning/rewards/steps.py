"""Rewards for the steps of a solution: of a critic that looks for the first wrong one, and of what it says.

The place of a step counts from 0; −1 is no mistake.
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
from learning.toy_tasks.sums import CLEAN
from schemas.errors import StepError
from schemas.references import PolicyRef
from schemas.use import EngineUse

DIGITS = 300
"""Of a number that is read; Python takes the longer for longer ones, and refuses thousands."""
NUMBER = re.compile(rf"-?\d{{1,{DIGITS}}}")
STEP = re.compile(rf"(-\d{{1,{DIGITS}}}|(?<!\d)\d{{1,{DIGITS}}}) ([+-]) (\d{{1,{DIGITS}}}) = (-?\d{{1,{DIGITS}}})")
"""A number is read from its first digit alone, so that a long text is read once."""


def distance(rows: list[Row], completions: list[str], *, floor: float | None = -1.0) -> list[float | None]:
    """Reward of a critic: how near its first wrong step is to the row's answer (FAPO 2025).

    1 where both say that there is none, −1 where only one does, else 1 − |predicted − true| / steps. What is no place
    in the chain earns `floor` (null: it cannot be scored). The number of steps is in the row's metadata; raises
    StepError where it is not.
    """
    return [_score_distance(row, completion, floor) for row, completion in zip(rows, completions, strict=True)]


def _score_distance(row: Row, completion: str, floor: float | None) -> float | None:
    try:
        steps = int(json.loads(row["metadata"] or "{}")["steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(
            f"steps.distance: the metadata of row {row['id']} does not say how many steps it has"
        ) from error
    if row["answer"] is None:
        return None
    true, predicted = parse_place(row["answer"]), parse_place(completion)
    if true is None:
        raise StepError(f"steps.distance: the answer of row {row['id']}, {row['answer'][:40]!r}, is no place of a step")
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
    """1 where a critic (a policy of another stage) finds no wrong step, 0 where it names one.

    What the critic does not answer with a place, or has no room for, cannot be scored. `engine` null is torch.
    """
    asked = [make_question(template, row, completion=c) for row, c in zip(rows, completions, strict=True)]
    said = replies(guest(judge, engine), asked, n=1, sampling=Sampling(0.0, max_completion_length), rng=rng)
    places = [None if texts is None else parse_place(texts[0]) for texts in said]
    return [None if place is None or place < CLEAN else float(place == CLEAN) for place in places]


def arithmetic(completions: list[str]) -> list[float | None]:
    """1 where every written step `a + b = c` is right and goes on from the one before; 0 where none is written.

    0 too where a number has more than 300 digits.
    """
    found: list[float | None] = []
    for text in completions:
        if any(len(digits) > DIGITS for digits in re.findall(r"\d+", text)):
            found.append(0.0)
            continue
        steps = [(int(a), int(b) if sign == "+" else -int(b), int(c)) for a, sign, b, c in STEP.findall(text)]
        right = all(a + b == c for a, b, c in steps) and all(old[2] == new[0] for old, new in pairwise(steps))
        found.append(float(bool(steps) and right))
    return found


def parse_place(text: str) -> int | None:
    """The number of at most 300 digits that a text is, None where it is anything else."""
    return int(text) if NUMBER.fullmatch(text := text.strip()) else None
