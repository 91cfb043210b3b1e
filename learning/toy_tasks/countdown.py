"""Countdown in short form: `7, 2, 4 -> 1` asks for an expression that uses each number at most once and equals 1.

A problem may have many correct answers. Numbers and target are positive integers, divisions have no remainder.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row, read_metadata
from schemas.errors import StepError

Step = tuple[int, str, int, int]
"""Left number, sign, right number, result."""
SPACE = 40_000
"""Draws after which the space counts as exhausted."""


def countdown(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    numbers: Annotated[int, Field(ge=2, le=4)] = 3,
    largest: Annotated[int, Field(ge=2, le=20)] = 9,
    target: Annotated[int, Field(ge=1, le=200)] = 30,
) -> list[Row]:
    """Generate `size` solvable countdown problems for the train or test split; `answer` is one solution.

    `numbers` numbers up to `largest`, targets up to `target`. The split depends on the problem's numbers, regardless of
    order, and on its target. Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng([seed, numbers, largest, target])

    def draw(rows: dict[str, Row]) -> Row | None:
        drawn = [int(n) for n in rng.integers(1, largest + 1, numbers)]
        result = int(rng.integers(1, target + 1))
        text, about = f"{', '.join(map(str, drawn))} -> {result}", {"numbers": drawn, "target": result}
        row = make_row("countdown", text, None, about)
        if row["id"] in rows or not is_in_split(hash_text(f"countdown\n{sorted(drawn)}\n{result}"), split, test_share):
            return None
        answer = next((text for _, text in iterate_solutions(drawn, result)), None)
        return None if answer is None else row | {"answer": answer}

    return draw_rows(draw, size, SPACE, "countdown", split, "raise `largest` or `target`")


def worked_countdown(row: Row, rng: np.random.Generator, *, marker: str = "#") -> str:
    """Write a random solution step by step, then as an expression: `7-4=3,3-2=1#7-4-2`.

    Raise StepError if the row is not a countdown problem.
    """
    solved = list(iterate_solutions(*read_problem(row)))
    if not solved:
        raise StepError(f"teacher worked_countdown: row {row['id']} has no solution")
    steps, text = solved[int(rng.integers(len(solved)))]
    return ",".join(f"{a}{sign}{b}={c}" for a, sign, b, c in steps) + marker + text


def read_problem(row: Row) -> tuple[list[int], int]:
    """Return numbers and target of a row; raise StepError if it is not a countdown problem."""
    return read_metadata(row, "countdown", lambda about: ([int(n) for n in about["numbers"]], int(about["target"])))


def iterate_solutions(numbers: list[int], target: int) -> Iterator[tuple[list[Step], str]]:
    """Yield every chain of steps from left to right over all numbers that ends at the target, with its expression."""
    for first, *rest in sorted(set(permutations(numbers))):
        yield from _chains(first, rest, str(first), [], target)


def _chains(total: int, rest: list[int], text: str, steps: list[Step], target: int) -> Iterator[tuple[list[Step], str]]:
    if not rest:
        if total == target:
            yield steps, text
        return
    number, *later = rest
    for sign in "+-*/":
        if (result := _apply(total, sign, number)) is None:
            continue
        left = f"({text})" if sign in "*/" and any(s in text for s in "+-") else text
        yield from _chains(result, later, f"{left}{sign}{number}", [*steps, (total, sign, number, result)], target)


def _apply(left: int, sign: str, right: int) -> int | None:
    """Return the result of a step; None if it is negative or not an integer."""
    if sign == "/":
        return left // right if right and left % right == 0 else None
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return result if result >= 0 else None
