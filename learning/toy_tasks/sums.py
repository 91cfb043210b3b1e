"""Sums written out step by step, with and without mistakes: demonstrations, and solutions to be checked.

A chain is `3 + 5 = 8, 8 - 2 = 6 #### 6`. A mistake in a step propagates to later steps; two mistakes that cancel leave
the answer correct.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.data.text_edits import mistaken
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row
from schemas.errors import StepError

SPACE = 50
"""Draws per requested problem after which the space counts as exhausted."""


def parse_sum(row: Row) -> tuple[list[int], list[str]]:
    """Return numbers and signs of the sum at the end of the prompt; raise StepError if there is none."""
    text = row["prompt"][-1]["content"]
    match = re.search(r"(-?\d+)((?:\s*[+-]\s*\d+)+)\s*=?\s*$", text)
    if match is None:
        raise StepError(f"teacher worked_sum: row {row['id']} does not end with a sum of whole numbers: {text!r}")
    terms = re.findall(r"([+-])\s*(\d+)", match[2])
    return [int(match[1]), *(int(number) for _, number in terms)], [sign for sign, _ in terms]


def write_chain(numbers: Sequence[int], signs: Sequence[str], mistakes: Mapping[int, int], marker: str = "####") -> str:
    """Return the running totals of a sum, then the answer; `mistakes` are added to the results of their steps."""
    total, steps = numbers[0], []
    for i, (sign, number) in enumerate(zip(signs, numbers[1:], strict=True)):
        result = (total + number if sign == "+" else total - number) + mistakes.get(i, 0)
        steps.append(f"{total} {sign} {number} = {result}")
        total = result
    return f"{', '.join(steps)} {marker} {total}"


def plant_mistakes(num_steps: int, number: int, rng: np.random.Generator) -> dict[int, int]:
    """Return `number` mistakes by step: 0, 1 (the answer is wrong) or 2 that cancel (the answer is correct)."""
    places = sorted(rng.choice(num_steps, size=number, replace=False).tolist())
    by = int(rng.choice([-2, -1, 1, 2]))
    return {place: by if i == 0 else -by for i, place in enumerate(places)}


def told_sum(row: Row, rng: np.random.Generator, *, style: Literal["totals", "words"], marker: str = "####") -> str:
    """Write a worked sum in another form: the running totals alone (`19, 16 #### 16`), or in words.

    In words `12 + 7 - 3 =` becomes `12 add 7 is 19, take 3 is 16 #### 16`. Raise StepError if the prompt does not end
    with a sum.
    """
    numbers, signs = parse_sum(row)
    total, parts = numbers[0], [str(numbers[0])] if style == "words" else []
    for sign, number in zip(signs, numbers[1:], strict=True):
        total += number if sign == "+" else -number
        parts.append(str(total) if style == "totals" else f"{'add' if sign == '+' else 'take'} {number} is {total}")
    first, *rest = parts
    text = f"{first} {', '.join(rest)}" if style == "words" else ", ".join(parts)
    return f"{text} {marker} {total}"


def first_step(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write only the first step of a sum, as a plan for another agent: `12 + 7 - 3 =` becomes `12 + 7 = 19`.

    At `error_rate` its result is off by one or two. Raise StepError if the prompt does not end with a sum.
    """
    numbers, signs = parse_sum(row)
    slip = int(rng.choice([-2, -1, 1, 2])) if rng.random() < error_rate else 0
    total = numbers[0] + numbers[1] if signs[0] == "+" else numbers[0] - numbers[1]
    return f"{numbers[0]} {signs[0]} {numbers[1]} = {total + slip}"


def flawed_sum(
    row: Row,
    rng: np.random.Generator,
    *,
    marker: str = "####",
    error_rate: Rate = 0.0,
    flaw_rate: Rate = 0.0,
) -> str:
    """Write a worked sum with a mistake at `error_rate`, or at `flaw_rate` two that cancel: right answer, wrong steps.

    Raise StepError if the prompt does not end with a sum, or if the two rates add up to more than 1.
    """
    if error_rate + flaw_rate > 1:
        raise StepError(f"teacher flawed_sum: error_rate ({error_rate}) and flaw_rate ({flaw_rate}) exceed 1 together")
    numbers, signs = parse_sum(row)
    chance = rng.random()
    number = 1 if chance < error_rate else 2 if chance < error_rate + flaw_rate and len(signs) > 1 else 0
    return write_chain(numbers, signs, plant_mistakes(len(signs), number, rng), marker)


def step_chains(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    min_steps: Annotated[int, Field(ge=2)] = 4,
    max_steps: Annotated[int, Field(ge=2)] = 8,
    question: str = "check ",
    marker: str = "####",
) -> list[Row]:
    """Generate worked sums to check; the answer is the index (from 0) of the first wrong step, −1 without one.

    Half are correct, a quarter have one mistake, a quarter two that cancel. Raise StepError if the space is too small.
    """
    if max_steps < min_steps:
        raise StepError(f"step_chains: max_steps ({max_steps}) is less than min_steps ({min_steps})")
    rng = np.random.default_rng(seed)

    def draw(_: dict[str, Row]) -> Row | None:
        steps = int(rng.integers(min_steps, max_steps + 1))
        numbers = rng.integers(1, 10, size=steps + 1).tolist()
        signs = rng.choice(["+", "-"], size=steps).tolist()
        mistakes = plant_mistakes(steps, int(rng.choice([0, 0, 1, 2])), rng)
        text, about = (
            question + write_chain(numbers, signs, mistakes, marker),
            {"steps": steps, "mistakes": len(mistakes)},
        )
        row = make_row("step_chains", text, str(min(mistakes, default=-1)), about)
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, SPACE * size, "step_chains", split, "lower `size` or raise `max_steps`")


def worked_sum(
    row: Row, rng: np.random.Generator, *, marker: str = "####", ending: str = "", error_rate: Rate = 0.0
) -> str:
    """Write the running totals of a sum, then the answer: `12 + 7 - 3 =` becomes `12 + 7 = 19, 19 - 3 = 16 #### 16`.

    `ending` follows the answer, such as a full stop. An error changes one total and propagates. Raise StepError if the
    prompt does not end with a sum.
    """
    numbers, signs = parse_sum(row)
    slip = int(rng.integers(len(signs))) if rng.random() < error_rate else None
    mistakes = {} if slip is None else {slip: int(rng.choice([-2, -1, 1, 2]))}
    return write_chain(numbers, signs, mistakes, marker) + ending


def worked_spelling(row: Row, rng: np.random.Generator, *, marker: str = "####", error_rate: Rate = 0.0) -> str:
    """Spell a word letter by letter, then backward, then write the answer: `sun` becomes `s-u-n, n-u-s #### nus`."""
    word = row["prompt"][-1]["content"].rpartition(": ")[2].strip()
    back = word[::-1]
    if rng.random() < error_rate:
        back = mistaken(back, rng)
    return f"{'-'.join(word)}, {'-'.join(back)} {marker} {back}"
