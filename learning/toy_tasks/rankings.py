"""Strings of ten digits whose value is how much they rise: writing problems and judging problems.

The value of a string is the number of its nine steps that do not fall, a digit from 0 to 9.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, is_in_split, make_row

LENGTH = 10
SPACE = 50
"""Draws per requested problem after which the space counts as exhausted."""


def count_rises(text: str) -> int:
    """Return the number of steps of a string that do not fall."""
    return sum(a <= b for a, b in pairwise(text))


def ratings(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    candidates: Annotated[int, Field(ge=1, le=9)] = 3,
) -> list[Row]:
    """Generate strings to rate: `rate 0123456789 9876543210=`; the answer is their values, `9 0`, all different.

    With one candidate the prompt has the form that `judges.own` can use. Raise StepError if the space is too small.
    """

    def one(rng: np.random.Generator) -> tuple[str, str]:
        strings: dict[int, str] = {}
        while len(strings) < candidates:
            text = _draw_string(rng)
            strings.setdefault(count_rises(text), text)
        return f"rate {' '.join(strings.values())}=", " ".join(map(str, strings))

    return _draw_distinct(one, "ratings", size, seed, split, test_share)


def rising(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate prompts for a rising string with a given beginning: `write 37=`; `answer` is one of the best."""

    def one(rng: np.random.Generator) -> tuple[str, str]:
        begin = "".join(map(str, rng.integers(0, 10, size=int(rng.integers(1, 4)))))
        last = int(begin[-1])
        rest = [min(9, last + i // 2) for i in range(1, LENGTH - len(begin) + 1)]
        return f"write {begin}=", begin + "".join(map(str, rest))

    return _draw_distinct(one, "rising", size, seed, split, test_share)


def _draw_string(rng: np.random.Generator) -> str:
    """Return sorted digits with some random swaps, half of them reversed, so that every value occurs."""
    digits = sorted(rng.integers(0, 10, size=LENGTH).tolist())
    for _ in range(int(rng.integers(0, 6))):
        i, j = rng.integers(0, LENGTH, size=2).tolist()
        digits[i], digits[j] = digits[j], digits[i]
    if rng.random() < 0.5:
        digits = digits[::-1]
    return "".join(map(str, digits))


def _draw_distinct(
    make: Callable[[np.random.Generator], tuple[str, str]],
    family: str,
    size: int,
    seed: int,
    split: str,
    test_share: float,
) -> list[Row]:
    """Return `size` rows of one split, by question; raise StepError if there are too few."""
    rng = np.random.default_rng([seed, len(family)])

    def draw(_: dict[str, Row]) -> Row | None:
        row = make_row(family, *make(rng), {"length": LENGTH})
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, SPACE * size, family, split, "lower `size` or change `test_share`")
