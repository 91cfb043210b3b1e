"""Problems with an operator of hidden meaning: `3?7` is the larger, smaller, first or second number.

Solved examples in context show the meaning; without them the model must have learnt it.
"""

import json
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split

MEANINGS: dict[str, Callable[[int, int], int]] = {
    "larger": max,
    "smaller": min,
    "first": lambda a, b: a,
    "second": lambda a, b: b,
}


def operations(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    meaning: Literal["larger", "smaller", "first", "second"] | None = None,
    shown: Annotated[int, Field(ge=0, le=8)] = 0,
    largest: Annotated[int, Field(ge=5, le=999)] = 9,
) -> list[Row]:
    """Generate `size` problems `a?b` of two different numbers, after `shown` solved ones as turns of a conversation.

    `meaning` is that of all problems; null draws one for each. The split depends on the two numbers of the question.
    Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, shown, largest])

    def draw(_: dict[str, Row]) -> Row | None:
        name = meaning or list(MEANINGS)[int(rng.integers(len(MEANINGS)))]
        pairs = [[int(v) for v in rng.choice(largest + 1, size=2, replace=False)] for _ in range(shown + 1)]
        turns = [_turn(role, pair, name) for pair in pairs for role in ("user", "assistant")]
        text = " ".join(turn["content"] for turn in turns[:-1])
        if not is_in_split(hash_text(f"operations\n{pairs[-1]}"), split, test_share):
            return None
        return {
            "id": hash_text(f"operations\n{name}\n{text}"),
            "prompt": turns[:-1],
            "answer": turns[-1]["content"],
            "family": "operations",
            "metadata": json.dumps({"meaning": name}),
        }

    return draw_rows(draw, size, 50 * size + 1000, "operations", split, "raise `largest` or lower `size`")


def _turn(role: str, pair: list[int], meaning: str) -> dict[str, str]:
    a, b = pair
    return {"role": role, "content": f"{a}?{b}" if role == "user" else str(MEANINGS[meaning](a, b))}
