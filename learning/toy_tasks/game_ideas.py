"""Seed ideas for text games, and a writer that turns one into a description as JSON, sometimes a flawed one."""

import json
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.problems.text_games import BOXES, ITEMS, ROOMS, SHELVES
from learning.text_game.world import DIRECTIONS
from learning.text_game.written import OPPOSITE
from learning.toy_tasks.rows import Rate, Size, draw_rows, make_row, read_metadata

SKILLS = {"fetch": None, "wash": "clean", "cook": "hot"}
"""What a game is about, each with what becomes of its item."""
FIXTURES = {"clean": "sink", "hot": "stove"}
FLAWS = ("key behind its door", "no way", "no such room", "no JSON", "more keys")
DRAWS = 60
"""Draws per row after which there are too few."""


def game_ideas(*, size: Size, seed: int = 0, rooms: Annotated[int, Field(ge=1, le=6)] = 3) -> list[Row]:
    """Generate `size` different ideas, such as `cook: a hot egg for the table, 3 rooms`, cycling through the skills.

    A game of one room has the shortest quests. Raise StepError if there are too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row:
        skill = list(SKILLS)[len(rows) % len(SKILLS)]
        item, holder = str(rng.choice(ITEMS)), str(rng.choice(SHELVES))
        thing = " ".join(word for word in (SKILLS[skill], item) if word)
        notes = {"skill": skill, "item": item, "holder": holder, "rooms": rooms}
        return make_row("idea", f"{skill}: a {thing} for the {holder}, {rooms} rooms", None, notes)

    return draw_rows(draw, size, DRAWS * size, "game_ideas", "all", "lower `size`")


def game_writer(row: Row, rng: np.random.Generator, *, flaws: Rate = 0.0, locks: Rate = 0.5, boxed: Rate = 1.0) -> str:
    """Write the game of an idea as JSON; at the rate `flaws` one that does not compile or cannot be solved.

    At the rate `boxed` the item is in a closed box, and at the rate `locks` a door is locked, where there is one:
    without them quests have fewer actions. Stands for a language model behind the teacher `endpoint`. Raise StepError
    for a row that is not of `game_ideas`.
    """
    idea = read_metadata(
        row, "game_ideas", lambda notes: {name: notes[name] for name in ("skill", "item", "holder", "rooms")}
    )
    possible = FLAWS if idea["rooms"] > 1 else FLAWS[2:]  # one room has no door
    flaw = possible[int(rng.integers(len(possible)))] if rng.random() < flaws else ""
    names = [str(name) for name in rng.permutation(ROOMS)[: idea["rooms"]]]
    game = _furnish(idea, names, rng)
    if boxed < 1 and rng.random() >= boxed:
        game["items"][idea["item"]] = names[min(1, len(names) - 1)]
    if len(names) > 1 and (flaw in FLAWS[:2] or rng.random() < locks):
        game["doors"] = [{"between": names[-2:], "key": "red key"}]
        game["items"]["red key"] = names[0]
        game["items"][idea["item"]] = names[-1]
    if flaw == "key behind its door":
        game["items"]["red key"] = names[-1]
    if flaw == "no way":
        del game["items"]["red key"]
    if flaw == "no such room":
        game["start"] = "moon"
    if flaw == "more keys":
        game["weather"] = "rain"
    text = json.dumps(game)
    return text[:-1] if flaw == "no JSON" else text


def _furnish(idea: Row, names: list[str], rng: np.random.Generator) -> dict[str, Any]:
    """Return a row of rooms with the item in a box, and the holder of the goal at the start."""
    exits: dict[str, dict[str, str]] = {name: {} for name in names}
    for one, other in pairwise(names):
        ways = [way for way in DIRECTIONS if way not in exits[one]]
        way = str(rng.choice(ways))
        exits[one][way], exits[other][OPPOSITE[way]] = other, one
    box = str(rng.choice(BOXES))
    quality = SKILLS[idea["skill"]]
    spare = str(rng.choice([item for item in ITEMS if item != idea["item"]]))
    return {
        "rooms": exits,
        "holders": {box: {"room": names[min(1, len(names) - 1)], "opens": True}, idea["holder"]: {"room": names[0]}},
        "fixtures": {} if quality is None else {FIXTURES[quality]: str(rng.choice(names))},
        "items": {idea["item"]: box, spare: names[int(rng.integers(len(names)))]},
        "start": names[0],
        "goal": {"item": idea["item"], "holder": idea["holder"], "quality": quality},
    }
