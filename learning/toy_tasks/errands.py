"""Requests for small services, and replies composed of stock phrases."""

from itertools import product
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, choose, hash_text, is_in_split

WORDS = {
    "booking": (("book", "reserve", "cancel", "move"), ("a table", "a room", "the flight", "a seat", "the tour")),
    "cooking": (("cook", "bake", "slice", "serve"), ("the fish", "a cake", "some rice", "the soup", "an egg")),
    "repairs": (("fix", "clean", "paint", "check"), ("the door", "my bike", "the roof", "a lamp", "the sink")),
    "letters": (("write", "send", "fold", "sign"), ("a note", "the form", "my letter", "a card", "the bill")),
}
WHEN = ("now", "today", "tonight", "on monday", "at noon", "this week")


def errands(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    families: list[Literal["booking", "cooking", "repairs", "letters"]] = ["booking", "cooking", "repairs", "letters"],  # noqa: B006
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` distinct requests of some families, for the train or test split.

    Raise StepError if the space holds too few.
    """
    rows = [
        row
        for family in dict.fromkeys(families)
        for words in product(*WORDS[family], WHEN)
        if is_in_split((row := _row(family, " ".join(words)))["id"], split, test_share)
    ]
    return choose("errands", split, rows, size, seed)


def _row(family: str, text: str) -> Row:
    digest = hash_text(f"{family}\n{text}")
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
