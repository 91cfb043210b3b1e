"""Opinions in eight words, `the film was good and the end dull`: problems, a teacher, kind and unkind words."""

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

THINGS = (
    "film",
    "book",
    "meal",
    "song",
    "trip",
    "game",
    "hotel",
    "phone",
    "talk",
    "show",
    "tour",
    "play",
    "story",
    "house",
)
PARTS = (
    "end",
    "start",
    "plot",
    "price",
    "team",
    "music",
    "room",
    "view",
    "staff",
    "idea",
    "size",
    "taste",
    "form",
    "look",
)
GOOD = ("good", "great", "fine", "nice", "fun", "bright")
BAD = ("bad", "poor", "dull", "weak", "sad", "cheap")


def opinions(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` subjects of opinions (`film, end`) for the train or test split, without a right answer.

    Raise StepError if there are too few.
    """
    pairs = [(thing, part) for thing in THINGS for part in PARTS]
    order = np.random.default_rng(seed).permutation(len(pairs))
    rows = [row for i in order if _held_out(row := _row(*pairs[int(i)]), test_share) == (split == "test")]
    if len(rows) < size:
        raise StepError(f"opinions: there are {len(rows)} {split} problems, {size} are wanted; lower `size`")
    return rows[:size]


def opinion(row: Row, rng: np.random.Generator, *, good: Annotated[float, Field(ge=0, le=1)] = 0.5) -> str:
    """Write an opinion in eight words; each of the two adjectives is kind with probability `good`.

    Raise StepError if the row is not an opinion problem.
    """
    about = json.loads(row["metadata"] or "{}")
    if "thing" not in about:
        raise StepError(f"teacher opinion: row {row['id']} is nothing to have an opinion about")
    kinds = [GOOD if rng.random() < good else BAD for _ in range(2)]
    first, second = (words[int(rng.integers(len(words)))] for words in kinds)
    return f"the {about['thing']} was {first} and the {about['part']} {second}"


def _row(thing: str, part: str) -> dict[str, Any]:
    text = f"{thing}, {part}"
    return {
        "id": hashlib.sha256(f"opinions\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": None,
        "family": "opinions",
        "metadata": json.dumps({"thing": thing, "part": part}, sort_keys=True),
    }


def _held_out(row: Row, test_share: float) -> bool:
    return int(row["id"], 16) < test_share * 2**64
