"""Text games as rows of a prompts table: a game as JSON in the metadata, its goal and first view as the prompt."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from learning.data.rows import Row
from learning.text_game.solver import solve
from learning.text_game.world import Goal, Holder, State, World, act, describe
from schemas.errors import StepError

Game = tuple[World, State]


def make_row(world: World, state: State, turns: int, instruction: str = "") -> Row:
    """Return the row of a game that an expert solves in `turns` turns; its id is the hash of the game."""
    game = {
        "exits": world.exits,
        "doors": world.doors,
        "holders": {name: [one.room, one.opens, one.key] for name, one in world.holders.items()},
        "fixtures": world.fixtures,
        "items": list(world.items),
        "goal": [world.goal.item, world.goal.holder, world.goal.quality],
        "state": save_state(state),
    }
    text = json.dumps(game)
    return {
        "id": hashlib.sha256(text.encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": f"{instruction}{world.goal}\n{describe(world, state)}"}],
        "answer": None,
        "family": f"text_game{turns}",
        "metadata": json.dumps({"game": text, "turns": turns}),
    }


def read_game(row: Row) -> Game:
    """Return the game of a row. Raise StepError if it has none, or one that cannot be solved."""
    try:
        game, plan = _read(json.loads(row["metadata"] or "")["game"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StepError(
            f"row {row.get('id')}: its metadata is not that of a text game; make problems with {{use: text_games}}"
        ) from error
    if plan is None:
        raise StepError(f"row {row.get('id')}: its text game cannot be solved; make problems with {{use: text_games}}")
    return game


def replay(row: Row) -> Game:
    """Return the game of a row after the turns of the assistant in its prompt. Raise StepError as `read_game` does."""
    world, state = read_game(row)
    turns = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    number = json.loads(row["metadata"]).get("turn", len(turns))
    if number != len(turns):
        raise StepError(
            f"row {row.get('id')}: its prompt shows {len(turns)} of {number} turns; the expert of text games needs "
            "all: leave out `context`"
        )
    for turn in turns:
        state = act(world, state, turn) or state
    return world, state


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Game, list[str] | None]:
    game = json.loads(text)
    holders = {name: Holder(*values) for name, values in game["holders"].items()}
    world = World(game["exits"], game["doors"], holders, game["fixtures"], tuple(game["items"]), Goal(*game["goal"]))
    state = restore_state(game["state"])
    return (world, state), solve(world, state)


def save_state(state: State) -> Row:
    """Return a state as JSON."""
    return {
        "room": state.room,
        "places": list(state.places),
        "opened": sorted(state.opened),
        "qualities": sorted(state.qualities),
    }


def restore_state(saved: Mapping[str, Any]) -> State:
    """Return the state that `save_state` gave."""
    return State(saved["room"], tuple(saved["places"]), frozenset(saved["opened"]), frozenset(saved["qualities"]))
