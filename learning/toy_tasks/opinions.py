"""Opinions in eight words, `the film was good and the end dull`: problems, a teacher, kind and unkind words."""

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, check_size, is_in_split, make_row, read_metadata

THINGS = (
    *("film", "book", "meal", "song", "trip", "game", "hotel"),
    *("phone", "talk", "show", "tour", "play", "story", "house"),
)
PARTS = (
    *("end", "start", "plot", "price", "team", "music", "room"),
    *("view", "staff", "idea", "size", "taste", "form", "look"),
)
GOOD = ("good", "great", "fine", "nice", "fun", "bright")
BAD = ("bad", "poor", "dull", "weak", "sad", "cheap")


def opinions(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` subjects of opinions (`film, end`) for the train or test split, without a right answer.

    Raise StepError if there are too few.
    """
    pairs = [(thing, part) for thing in THINGS for part in PARTS]
    order = np.random.default_rng(seed).permutation(len(pairs))
    rows = [row for i in order if is_in_split((row := _row(*pairs[int(i)]))["id"], split, test_share)]
    check_size("opinions", split, len(rows), size)
    return rows[:size]


def opinion(row: Row, rng: np.random.Generator, *, good: Rate = 0.5) -> str:
    """Write an opinion in eight words; each of the two adjectives is kind with probability `good`.

    Raise StepError if the row is not an opinion problem.
    """
    thing, part = read_metadata(row, "opinions", lambda about: (about["thing"], about["part"]))
    kinds = [GOOD if rng.random() < good else BAD for _ in range(2)]
    first, second = (words[int(rng.integers(len(words)))] for words in kinds)
    return f"the {thing} was {first} and the {part} {second}"


def _row(thing: str, part: str) -> Row:
    return make_row("opinions", f"{thing}, {part}", None, {"part": part, "thing": thing})
