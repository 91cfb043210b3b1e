"""Strings of ten digits whose value is how much they rise: writing problems and judging problems.

The value of a string is the number of its nine steps that do not fall, a digit from 0 to 9.
"""

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

LENGTH = 10
SPACE = 50
"""Draws per requested problem after which the space counts as exhausted."""
Share = Annotated[float, Field(gt=0, lt=1)]


def worth(text: str) -> int:
    """Return the number of steps of a string that do not fall."""
    return sum(a <= b for a, b in pairwise(text))


def ratings(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Share = 0.2,
    candidates: Annotated[int, Field(ge=1, le=9)] = 3,
) -> list[Row]:
    """Generate strings to rate: `rate 0123456789 9876543210=`; the answer is their values, `9 0`, all different.

    With one candidate the prompt has the form that `judges.own` can use. Raise StepError if the space is too small.
    """

    def one(rng: np.random.Generator) -> tuple[str, str]:
        strings: dict[int, str] = {}
        while len(strings) < candidates:
            found = _string(rng)
            strings.setdefault(worth(found), found)
        return f"rate {' '.join(strings.values())}=", " ".join(map(str, strings))

    return _distinct(one, "ratings", size, seed, split, test_share)


def rising(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Share = 0.2,
) -> list[Row]:
    """Generate prompts for a rising string with a given beginning: `write 37=`; `answer` is one of the best."""

    def one(rng: np.random.Generator) -> tuple[str, str]:
        begin = "".join(map(str, rng.integers(0, 10, size=int(rng.integers(1, 4)))))
        last = int(begin[-1])
        rest = [min(9, last + i // 2) for i in range(1, LENGTH - len(begin) + 1)]
        return f"write {begin}=", begin + "".join(map(str, rest))

    return _distinct(one, "rising", size, seed, split, test_share)


def _string(rng: np.random.Generator) -> str:
    """Return sorted digits with some random swaps, half of them reversed, so that every value occurs."""
    digits = sorted(rng.integers(0, 10, size=LENGTH).tolist())
    for _ in range(int(rng.integers(0, 6))):
        i, j = rng.integers(0, LENGTH, size=2).tolist()
        digits[i], digits[j] = digits[j], digits[i]
    if rng.random() < 0.5:
        digits = digits[::-1]
    return "".join(map(str, digits))


def _distinct(
    make: Callable[[np.random.Generator], tuple[str, str]],
    family: str,
    size: int,
    seed: int,
    split: str,
    test_share: float,
) -> list[Row]:
    """Return `size` rows of one split, by question; raise StepError if there are too few."""
    rng = np.random.default_rng([seed, len(family)])
    rows: dict[str, Row] = {}
    for _ in range(SPACE * size):
        question, answer = make(rng)
        name = hashlib.sha256(f"{family}\n{question}".encode()).hexdigest()[:16]
        if (int(name, 16) < test_share * 2**64) == (split == "test"):
            rows[name] = {
                "id": name,
                "prompt": [{"role": "user", "content": question}],
                "answer": answer,
                "family": family,
                "metadata": json.dumps({"length": LENGTH}),
            }
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"{family}: found {len(rows)} {split} problems of {size}; lower `size` or change `test_share`")
