"""Numbers to be guessed within a range that the problem tells, and a guesser who listens now and then."""

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from schemas.errors import StepError

FIRST = [10 * tens + units for tens in range(1, 10) for units in range(4)]
"""First numbers of the ranges, which end within the same ten."""


def guesses(
    *,
    split: Literal["train", "test"],
    seed: int = 0,
    size: Annotated[int, Field(ge=1)] | None = None,
    span: Annotated[int, Field(ge=2, le=7)] = 7,
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.25,
) -> list[dict[str, Any]]:
    """A range of `span` two-digit numbers and one of them hidden, for environment `guess`; the split is by range.

    `size` null: all there are. Raises StepError when there are fewer.
    """
    rows = [
        _row(first, first + span - 1, hidden)
        for first in FIRST
        for hidden in range(first, first + span)
        if (_share(first) < test_share) == (split == "test")
    ]
    if size is not None and len(rows) < size:
        raise StepError(f"guesses: there are {len(rows)} {split} problems, {size} were asked for; lower `size`")
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[i] for i in order[:size]]


def guesser(
    row: dict[str, Any],
    rng: np.random.Generator,
    *,
    listens: Annotated[float, Field(ge=0, le=1)] = 1.0,
    higher: str = "higher",
    lower: str = "lower",
) -> str:
    """A number of the range that has not been said: in the middle of what answers leave, or else at random.

    `listens` is the probability of the first; `higher` and `lower` are what the environment says.
    """
    told = json.loads(row["metadata"])
    left = list(range(told["low"], told["high"] + 1))
    turns = row["prompt"][1:]
    said = [int(message["content"]) for message in turns[::2]]
    if rng.random() < listens:
        for guess, heard in zip(said, turns[1::2], strict=True):
            kept = {higher: range(guess + 1, told["high"] + 1), lower: range(told["low"], guess)}[heard["content"]]
            left = [n for n in left if n in kept]
        return str(left[(len(left) - 1) // 2])
    left = [n for n in left if n not in said]
    return str(left[int(rng.integers(len(left)))])


def _share(first: int) -> float:
    return int(hashlib.sha256(f"guess {first}".encode()).hexdigest()[:8], 16) / 16**8


def _row(low: int, high: int, hidden: int) -> dict[str, Any]:
    text = f"{low}-{high}?"
    return {
        "id": f"{text}{hidden}",
        "prompt": [{"role": "user", "content": text}],
        "answer": str(hidden),
        "family": "guess",
        "metadata": json.dumps({"low": low, "high": high}),
    }
