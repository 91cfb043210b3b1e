"""Lists in which one word is to be counted: `key|abc,key,xyz,` asks how often `key` occurs after the bar.

A list can have any length, and its parts are problems of the same kind: the counts of the parts add up.
"""

import hashlib
import json
import string
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError


def needles(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    shortest: Annotated[int, Field(ge=4)] = 8,
    longest: Annotated[int, Field(ge=4)] = 100,
    share: Annotated[float, Field(gt=0, le=1)] = 0.2,
    needle: str = "key",
) -> list[Row]:
    """Generate `size` lists of `shortest` to `longest` characters; at most `share` of the words are the needle.

    Words have three letters, none of them in the needle, and a comma, so lengths are multiples of four. Raise StepError
    if the space holds too few lists.
    """
    rng = np.random.default_rng([seed, split == "test", shortest, longest])
    letters = [c for c in string.ascii_lowercase if c not in needle]
    rows: dict[str, Row] = {}
    for _ in range(20 * size):
        words = rng.choice(letters, (int(rng.integers(shortest // 4, longest // 4 + 1)), 3))
        items = ["".join(word) for word in words]
        for place in rng.permutation(len(items))[: int(rng.integers(0, int(share * len(items)) + 1))]:
            items[place] = needle
        row = _row(items, needle)
        if _held_out(row) == (split == "test"):
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"needles: found {len(rows)} {split} lists of {size}; raise `longest`")


def _row(items: list[str], needle: str) -> dict[str, Any]:
    text = f"{needle}|{''.join(f'{item},' for item in items)}"
    return {
        "id": hashlib.sha256(f"needles\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": str(items.count(needle)),
        "family": "needles",
        "metadata": json.dumps({"words": len(items)}),
    }


def _held_out(row: Row) -> bool:
    """Return whether a list is in the test split: a fifth of all lists, by the hash of their text."""
    return int(row["id"], 16) % 5 == 0
