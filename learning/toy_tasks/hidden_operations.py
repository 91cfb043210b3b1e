"""Problems with an operator of hidden meaning: `3?7` is the larger, smaller, first or second number.

Solved examples in context show the meaning; without them the model must have learnt it.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

MEANINGS: dict[str, Callable[[int, int], int]] = {
    "larger": max,
    "smaller": min,
    "first": lambda a, b: a,
    "second": lambda a, b: b,
}


def operations(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    meaning: Literal["larger", "smaller", "first", "second"] | None = None,
    shown: Annotated[int, Field(ge=0, le=8)] = 0,
    largest: Annotated[int, Field(ge=5, le=999)] = 9,
) -> list[Row]:
    """Generate `size` problems `a?b` of two different numbers, after `shown` solved ones as turns of a conversation.

    `meaning` is that of all problems; null draws one for each. The split depends on the two numbers of the question.
    Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, shown, largest])
    rows: dict[str, Row] = {}
    for _ in range(50 * size + 1000):
        name = meaning or list(MEANINGS)[int(rng.integers(len(MEANINGS)))]
        pairs = [[int(v) for v in rng.choice(largest + 1, size=2, replace=False)] for _ in range(shown + 1)]
        turns = [_turn(role, pair, name) for pair in pairs for role in ("user", "assistant")]
        text = " ".join(turn["content"] for turn in turns[:-1])
        row_id = hashlib.sha256(f"operations\n{name}\n{text}".encode()).hexdigest()[:16]
        if row_id in rows or _held_out(pairs[-1], test_share) != (split == "test"):
            continue
        rows[row_id] = {
            "id": row_id,
            "prompt": turns[:-1],
            "answer": turns[-1]["content"],
            "family": "operations",
            "metadata": json.dumps({"meaning": name}),
        }
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"operations: found {len(rows)} {split} problems of {size}; raise `largest` or lower `size`")


def _turn(role: str, pair: list[int], meaning: str) -> dict[str, str]:
    a, b = pair
    return {"role": role, "content": f"{a}?{b}" if role == "user" else str(MEANINGS[meaning](a, b))}


def _held_out(pair: list[int], test_share: float) -> bool:
    digest = hashlib.sha256(f"operations\n{pair}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64
