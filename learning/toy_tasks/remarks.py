"""Remarks about things, all good or all bad, for a model whose texts are watermarked: `the room was very clean and …`.

What words mean is an option: pairs of groups of words, `[[clean, tidy], [dirty, messy]]`, of which those of a group
mean the same and the groups are opposites.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

THINGS = (
    *("room", "food", "bed", "hall", "view", "desk", "staff", "lift", "pool", "bar", "lobby", "bath", "chair", "lamp"),
    *("door", "floor", "garden", "coffee", "bread", "soup", "cake", "fish", "salad", "tea", "juice", "price", "music"),
    *(
        "towel",
        "window",
        "wall",
        "table",
        "service",
        "street",
        "park",
        "beach",
        "shop",
        "train",
        "bus",
        "driver",
        "guide",
    ),
)
ADVERBS = ("really", "very", "quite", "rather", "truly", "always", "often", "mostly", "fully", "highly", "most", "so")
LINKS = ("and", "also", "then", "while", "plus")
PARTS = 6
"""Things in a remark."""
DRAWS = 60
"""Draws per requested problem after which the space counts as exhausted."""
Group = Annotated[list[Annotated[str, Field(pattern=r"^[a-z]+$")]], Field(min_length=1)]
Meanings = Annotated[list[tuple[Group, Group]], Field(min_length=1)]


def remarks(*, meanings: Meanings, size: Size, split: Split, seed: int = 0, test_share: TestShare = 0.2) -> list[Row]:
    """Generate beginnings such as `room clean`; the answer goes on with six things, all good or all bad.

    Beginnings are split by their text. Raise StepError if there are fewer than `size`.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def describe(side: int) -> str:
        group = meanings[int(rng.integers(len(meanings)))][side]
        return f"was {rng.choice(ADVERBS)} {group[int(rng.integers(len(group)))]}"

    def draw(rows: dict[str, Row]) -> Row | None:
        side = int(rng.integers(2))
        things = [str(thing) for thing in rng.permutation(THINGS)[:PARTS]]
        first = describe(side)
        text = f"{things[0]} {first.split()[-1]}"
        if not is_in_split(hash_text(f"remark {text}"), split, test_share):
            return None
        rest = " ".join(f"{rng.choice(LINKS)} the {thing} {describe(side)}" for thing in things[1:])
        return make_row("remarks", text, f"the {things[0]} {first} {rest}", {"side": side})

    return draw_rows(draw, size, DRAWS * size, "remarks", split, "lower `size`, or give more `meanings`")
