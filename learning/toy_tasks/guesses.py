"""Games in which a digit in a given range is guessed, and a teacher that uses the replies with some probability."""

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

GAMES = 1000
"""Number of games; the number of a game carries no information about its digit."""


def guesses(
    *,
    split: Literal["train", "test"],
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    span: Annotated[int, Field(ge=2, le=9)] = 3,
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate games `417 4-6` with one of `span` digits hidden, for the environment `guess`, split by game.

    Raise StepError if there are fewer than `size`.
    """
    games = [game for game in range(GAMES) if (_share(game) < test_share) == (split == "test")]
    if len(games) < size:
        raise StepError(f"guesses: there are {len(games)} {split} games, {size} were asked for; lower `size`")
    order = np.random.default_rng(seed).permutation(len(games))
    return [_row(games[i], span) for i in order[:size]]


def guesser(
    row: Row,
    rng: np.random.Generator,
    *,
    listens: Annotated[float, Field(ge=0, le=1)] = 1.0,
    higher: str = "higher",
    lower: str = "lower",
) -> str:
    """Write an untried number of the range: the middle of the remaining range, or a random one.

    `listens` is the probability of the first; `higher` and `lower` are the replies of the environment.
    """
    told = json.loads(row["metadata"])
    left = list(range(told["low"], told["high"] + 1))
    turns = row["prompt"][1:]
    said = [int(message["content"]) for message in turns[::2]]
    if rng.random() < listens:
        for guess, heard in zip(said, turns[1::2], strict=True):
            kept = {higher: range(guess + 1, told["high"] + 1), lower: range(told["low"], guess)}[heard["content"]]
            left = [n for n in left if n in kept]
        return str(left[(len(left) - 1) // 2])
    left = [n for n in left if n not in said]
    return str(left[int(rng.integers(len(left)))])


def _share(game: int) -> float:
    return int(hashlib.sha256(f"guess {game}".encode()).hexdigest()[:8], 16) / 16**8


def _row(game: int, span: int) -> dict[str, Any]:
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
