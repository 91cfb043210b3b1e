"""Games in which a digit in a given range is guessed, and a teacher that uses the replies with some probability."""

import hashlib
import json
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, choose

GAMES = 1000
"""Number of games; the number of a game carries no information about its digit."""


def guesses(
    *,
    split: Split,
    size: Size,
    seed: int = 0,
    span: Annotated[int, Field(ge=2, le=9)] = 3,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate games `417 4-6` with one of `span` digits hidden, for the environment `guess`, split by game.

    Raise StepError if there are fewer than `size`.
    """
    games = [game for game in range(GAMES) if (_share(game) < test_share) == (split == "test")]
    return [_row(game, span) for game in choose("guesses", split, games, size, seed)]


def guesser(
    row: Row,
    rng: np.random.Generator,
    *,
    listens: Rate = 1.0,
    higher: str = "higher",
    lower: str = "lower",
) -> str:
    """Write an untried number of the range: the middle of the remaining range, or a random one.

    `listens` is the probability of the first; `higher` and `lower` are the replies of the environment.
    """
    game = json.loads(row["metadata"])
    left = list(range(game["low"], game["high"] + 1))
    turns = row["prompt"][1:]
    guessed = [int(message["content"]) for message in turns[::2]]
    if rng.random() < listens:
        for guess, reply in zip(guessed, turns[1::2], strict=True):
            possible = {higher: range(guess + 1, game["high"] + 1), lower: range(game["low"], guess)}[reply["content"]]
            left = [n for n in left if n in possible]
        return str(left[(len(left) - 1) // 2])
    left = [n for n in left if n not in guessed]
    return str(left[int(rng.integers(len(left)))])


def _share(game: int) -> float:
    return int(hashlib.sha256(f"guess {game}".encode()).hexdigest()[:8], 16) / 16**8


def _row(game: int, span: int) -> Row:
    rng = np.random.default_rng([game, span])
    low = int(rng.integers(1, 11 - span))
    text, hidden = f"{game:03d} {low}-{low + span - 1}", low + int(rng.integers(span))
    return {
        "id": text,
        "prompt": [{"role": "user", "content": text}],
        "answer": str(hidden),
        "family": "guess",
        "metadata": json.dumps({"low": low, "high": low + span - 1}),
    }
