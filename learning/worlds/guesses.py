"""Numbers to be guessed within a range that the problem tells, and a guesser who tries them at random."""

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


def untried(row: dict[str, Any], rng: np.random.Generator) -> str:
    """A number of the range that has not been said yet, at random: one who does not listen to what is answered."""
    told = json.loads(row["metadata"])
    said = {message["content"] for message in row["prompt"] if message["role"] == "assistant"}
    left = [str(n) for n in range(told["low"], told["high"] + 1) if str(n) not in said]
    return left[int(rng.integers(len(left)))]


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
