"""Lists in which one word is to be counted: `key|abc,key,xyz,` asks how often `key` occurs after the bar.

A list can have any length, and its parts are problems of the same kind: the counts of the parts add up.
"""

import string
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, draw_rows, make_row


def needles(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
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

    def draw(_: dict[str, Row]) -> Row | None:
        words = rng.choice(letters, (int(rng.integers(shortest // 4, longest // 4 + 1)), 3))
        items = ["".join(word) for word in words]
        for place in rng.permutation(len(items))[: int(rng.integers(0, int(share * len(items)) + 1))]:
            items[place] = needle
        text = f"{needle}|{''.join(f'{item},' for item in items)}"
        row = make_row("needles", text, str(items.count(needle)), {"words": len(items)})
        is_test = int(row["id"], 16) % 5 == 0
        return row if is_test == (split == "test") else None

    return draw_rows(draw, size, 20 * size, "needles", split, "raise `longest`")
