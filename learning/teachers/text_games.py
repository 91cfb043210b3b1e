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


def text_game_wanderer(row: Row, rng: np.random.Generator) -> str:
    """Write one of the actions that are possible in a text game, all of them alike.

    The prompt must show all turns so far. Raise StepError for a row without a game.
    """
    actions = list(list_actions(*replay(row)))
    return actions[int(rng.integers(len(actions)))]


REASONS = {
    "go": "it may be further on",
    "open": "something may be inside",
    "take": "it may be of use",
    "put": "it may belong there",
    "drop": "it is not needed",
}
"""What speaks for an action, by its verb."""


def text_game_reasons(row: Row, rng: np.random.Generator, *, question: str = "why: ") -> str:
    """Write a reason for the action after `question` in the last message: the goal names its thing, or by its verb."""
    action = str(row["prompt"][-1]["content"]).rpartition(question)[2]
    goal = str(row["prompt"][0]["content"]).partition("\n")[0].split()
    verb, _, thing = action.partition(" ")
    name = next((word for word in thing.split() if word in goal and word not in ("in", "the")), None)
    return REASONS.get(verb, "why not") if name is None else f"the goal is about the {name}"
