"""People with a profile of three slots of four values each, which the environment `interview` keeps hidden."""

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

SLOTS = {
    "pet": ("cat", "dog", "fish", "bird"),
    "city": ("rome", "oslo", "lima", "bonn"),
    "job": ("chef", "nurse", "clerk", "pilot"),
}
DRAWS = 50
"""Draws per requested problem after which the space counts as exhausted."""


def acquaintances(*, split: Split, size: Size, seed: int = 0, test_share: TestShare = 0.2) -> list[Row]:
    """Generate people `417` with a pet, a city and a job, the `facts` of their metadata; the answer is none.

    The number carries no information about the profile. People are split by their number. Raise StepError if there
    are fewer than `size`.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def draw(rows: dict[str, Row]) -> Row | None:
        number = int(rng.integers(1000))
        facts = {slot: values[int(rng.integers(len(values)))] for slot, values in SLOTS.items()}
        if not is_in_split(hash_text(f"acquaintance {number}"), split, test_share):
            return None
        return make_row("acquaintances", f"{number:03d}", None, {"facts": facts}, salt=str(facts))

    return draw_rows(draw, size, DRAWS * size, "acquaintances", split, "lower `size`")
