"""Teachers of TextWorld's games."""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.text_game.textworld import replay
from schemas.errors import StepError


def textworld_expert(
    row: Row, rng: np.random.Generator, *, error_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
) -> str:
    """Write the next command of a way to win a game of TextWorld, or sometimes another possible command.

    The prompt must show all turns so far. Raise StepError for a row without a game, and for a game that is over.
    """
    world, progress = replay(row)
    best = world.find_best(progress)
    if best is None:
        problem = "its game is over, cannot be won any more, or has a quest without commands"
        raise StepError(f"teacher textworld_expert: row {row.get('id')}: {problem}")
    others = [name for name in world.list_commands(progress) if name != best]
    return others[int(rng.integers(len(others)))] if others and rng.random() < error_rate else best
