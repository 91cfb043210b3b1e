"""Requests for small services, and replies composed of stock phrases."""

import hashlib
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

ASKED = {
    "booking": (("book", "reserve", "cancel", "move"), ("a table", "a room", "the flight", "a seat", "the tour")),
    "cooking": (("cook", "bake", "slice", "serve"), ("the fish", "a cake", "some rice", "the soup", "an egg")),
    "repairs": (("fix", "clean", "paint", "check"), ("the door", "my bike", "the roof", "a lamp", "the sink")),
    "letters": (("write", "send", "fold", "sign"), ("a note", "the form", "my letter", "a card", "the bill")),
}
WHEN = ("now", "today", "tonight", "on monday", "at noon", "this week")


def errands(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    families: list[Literal["booking", "cooking", "repairs", "letters"]] = ["booking", "cooking", "repairs", "letters"],  # noqa: B006
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` distinct requests of some families, for the train or test split.

    Raise StepError if the space holds too few.
    """
    rows = [
        row
        for family in dict.fromkeys(families)
        for words in product(*ASKED[family], WHEN)
        if (int((row := _row(family, " ".join(words)))["id"], 16) < test_share * 2**64) == (split == "test")
    ]
    if len(rows) < size:
        raise StepError(f"errands: there are {len(rows)} {split} requests, {size} were asked for; lower `size`")
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[i] for i in order[:size]]


def _row(family: str, text: str) -> dict[str, Any]:
    digest = hashlib.sha256(f"{family}\n{text}".encode()).hexdigest()[:16]
    prompt = [{"role": "user", "content": f"{text}?"}]
    return {"id": digest, "prompt": prompt, "answer": None, "family": family, "metadata": "{}"}


def stock_reply(
    row: Row,
    rng: np.random.Generator,
    *,
    phrases: list[str],
    most: Annotated[int, Field(ge=1)] = 3,
) -> str:
    """Write one to `most` random `phrases`, for replies of every quality."""
    count = int(rng.integers(1, most + 1))
    return " ".join(phrases[int(i)] for i in rng.integers(0, len(phrases), count))
