"""Teachers of text games."""

from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.text_game.rows import read_game, replay
from learning.text_game.solver import solve
from learning.text_game.world import State, list_actions
from schemas.errors import StepError


def text_game_expert(
    row: Row, rng: np.random.Generator, *, error_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
) -> str:
    """Write the next action of a shortest solution of a text game, or sometimes another possible action.

    The prompt must show all turns so far. Raise StepError for a row without a game.
    """
    world, state = replay(row)
    best = _find_next(row["id"].partition(".")[0], str(row["metadata"]), state)
    if rng.random() >= error_rate:
        return best
    others = [action for action in list_actions(world, state) if action != best]
    return others[int(rng.integers(len(others)))] if others else best


@lru_cache(maxsize=65536)
def _find_next(name: str, metadata: str, state: State) -> str:
    """Return the first action of a shortest solution from a state."""
    world, _ = read_game({"id": name, "metadata": metadata})
    plan = solve(world, state)
    if not plan:
        raise StepError(f"teacher text_game_expert: row {name}: its game is over after the turns in its prompt")
    return plan[0]
