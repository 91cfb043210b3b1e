"""A teacher for the corridor behind `data/servers/corridor`."""

import re

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate
from schemas.errors import StepError

WAY = re.compile(r"to the (left|right)")


def corridor_walker(row: Row, rng: np.random.Generator, *, right: Rate = 1.0) -> str:
    """Write the direction that the last message names with probability `right`, otherwise a random one.

    Raise StepError if it names none; the recipe shows it with `show: way`.
    """
    way = WAY.search(str(row["prompt"][-1]["content"]))
    if way is None:
        raise StepError(f"teacher corridor_walker: row {row['id']}: no direction in the last message; set `show: way`")
    return way[1] if rng.random() < right else ("left", "right")[int(rng.integers(2))]
