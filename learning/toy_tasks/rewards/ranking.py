"""The true value of an answer to the toy task of rankings, for evaluations."""

import re
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rankings import LENGTH, count_rises


def rises(
    rows: list[Row], completions: list[str], *, length: Annotated[int, Field(ge=2)] = LENGTH
) -> list[float | None]:
    """Value of a string of `length` digits over the highest possible; 0 for another string or beginning."""
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        begin = re.sub(r"\D", "", row["prompt"][-1]["content"])
        text = completion.strip()
        valid = len(text) == length and text.isascii() and text.isdecimal() and text.startswith(begin)
        scores.append(count_rises(text) / (length - 1) if valid else 0.0)
    return scores
