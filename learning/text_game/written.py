"""Text games written as JSON, for example by a language model: read strictly, refused if anything is off.

    {"rooms": {"kitchen": {"east": "hall"}, "hall": {"west": "kitchen"}},
     "doors": [{"between": ["kitchen", "hall"], "key": "red key"}],
     "holders": {"chest": {"room": "kitchen", "opens": true}, "table": {"room": "hall"}},
     "fixtures": {"stove": "kitchen"},
     "items": {"soup": "table", "red key": "chest"},
     "start": "kitchen",
     "goal": {"item": "soup", "holder": "table", "quality": "hot"}}

The text is data of a stranger: it is parsed and never evaluated, and what it can describe is small enough to be solved.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from learning.text_game.solver import solve
from learning.text_game.world import CRAFTS, DIRECTIONS, HAND, Goal, Holder, State, World, act, is_solved, name_door
from schemas.base import Schema

LONGEST = 8_000
"""Characters of a description."""
MOST_TURNS = 40
"""Actions of a solution."""
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
RESERVED = {
    *DIRECTIONS,
    *CRAFTS,
    *(fixture for fixture, _ in CRAFTS.values()),
    HAND,
    "look",
    "nothing",
    "empty",
    "closed",
}
"""Words that mean something else in the game."""
Name = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,12}( [a-z]{1,12}){0,2}$", strict=True)]


class WrittenDoor(Schema):
    """A door between two neighbouring rooms; without a key it is closed, and opens."""

    between: tuple[Name, Name]
    key: Name | None = None


class WrittenHolder(Schema):
    """Furniture; one with a key opens."""

    room: Name
    opens: Annotated[bool, Field(strict=True)] = False
    key: Name | None = None


class WrittenGoal(Schema):
    """An item that is to be in a holder, perhaps clean or hot."""

    item: Name
    holder: Name
    quality: Literal["clean", "hot"] | None = None


class WrittenGame(Schema):
    """A game as it is written."""

    rooms: dict[Name, dict[str, Name]] = Field(min_length=1, max_length=6)
    doors: list[WrittenDoor] = Field(default=[], max_length=3)
    holders: dict[Name, WrittenHolder] = Field(min_length=1, max_length=8)
    fixtures: dict[str, Name] = {}
    items: dict[Name, Name] = Field(min_length=1, max_length=8)
    start: Name
    goal: WrittenGoal


def compile_game(text: str) -> tuple[World, State]:
    """Return the world and the first state that a description means. Raise ValueError with the reason for another."""
    game = _parse(text)
    _check_names(game)
    _check_places(game)
    _check_goal(game)
    exits = {room: {way: around[way] for way in DIRECTIONS if way in around} for room, around in game.rooms.items()}
    doors = {name_door(*door.between): door.key for door in game.doors}
    holders = {name: Holder(one.room, one.opens or one.key is not None, one.key) for name, one in game.holders.items()}
    goal = Goal(game.goal.item, game.goal.holder, game.goal.quality)
    world = World(exits, doors, holders, dict(game.fixtures), tuple(game.items), goal)
    return world, State(game.start, tuple(game.items.values()))


def walk_through(world: World, state: State) -> list[str]:
    """Return the actions of a shortest solution. Raise ValueError if there is none, or none that ends at the goal."""
    plan = solve(world, state, MOST_TURNS)
    if plan is None:
        raise ValueError(f"it cannot be solved in {MOST_TURNS} actions: something that is needed cannot be reached")
    if not plan:
        raise ValueError("it is solved before it begins")
    for action in plan:
        after = act(world, state, action)
        if after is None:
            raise ValueError(f"its solution cannot be played: {action!r} is not possible")
        state = after
    if not is_solved(world, state):
        raise ValueError("its solution does not end at the goal")
    return plan


def _parse(text: str) -> WrittenGame:
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters; at most {LONGEST} are read")
    try:
        written: Any = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(written, dict):
        raise ValueError("it is no JSON object")
    try:
        return WrittenGame.model_validate(written)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"]) or "game"
        raise ValueError(f"{place}: {first['msg']}") from None


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


def _check_names(game: WrittenGame) -> None:
    """Refuse a name that two things have, or that means something else."""
    names = [*game.rooms, *game.holders, *game.items]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name}: two things have this name")
        if name in RESERVED or "in" in name.split():
            raise ValueError(f"{name}: this word means something else in the game")


def _check_places(game: WrittenGame) -> None:
    """Refuse passages of one direction alone, doors where there is no passage, and things that are nowhere."""
    for room, around in game.rooms.items():
        for way, other in around.items():
            if way not in OPPOSITE:
                raise ValueError(f"rooms.{room}.{way[:40]}: directions are {', '.join(DIRECTIONS)}")
            if other == room or game.rooms.get(other, {}).get(OPPOSITE[way]) != room:
                raise ValueError(f"rooms.{room}.{way}: the passage to {other} does not lead back by {OPPOSITE[way]}")
    seen = set[str]()
    for door in game.doors:
        one, other = door.between
        if other not in game.rooms.get(one, {}).values() or name_door(one, other) in seen:
            raise ValueError(f"doors: between {one} and {other} there is no passage, or a second door")
        seen.add(name_door(one, other))
    if strange := [name for name in game.fixtures if name not in {fixture for fixture, _ in CRAFTS.values()}]:
        raise ValueError(f"fixtures.{strange[0][:40]}: there are sinks and stoves")
    rooms = [game.start, *game.fixtures.values(), *(holder.room for holder in game.holders.values())]
    if unknown := [room for room in rooms if room not in game.rooms]:
        raise ValueError(f"{unknown[0]}: there is no such room")
    if nowhere := [place for place in game.items.values() if place not in game.rooms and place not in game.holders]:
        raise ValueError(f"items: {nowhere[0]} is neither a room nor a holder")


def _check_goal(game: WrittenGame) -> None:
    """Refuse keys and a goal that name things which there are not."""
    keys = {key for key in (*(d.key for d in game.doors), *(h.key for h in game.holders.values())) if key is not None}
    if len(keys) > 2:
        raise ValueError("there are more than two keys")
    if lost := sorted(keys - game.items.keys()):
        raise ValueError(f"{lost[0]}: there is no such key among the items")
    if strange := sorted(key for key in keys if not key.endswith(" key")):
        raise ValueError(f"{strange[0]}: a key has a name such as `red key`")
    if game.goal.item not in game.items or game.goal.holder not in game.holders:
        raise ValueError("goal: its item or its holder is not in the game")
    needed = {quality: fixture for fixture, quality in CRAFTS.values()}.get(str(game.goal.quality))
    if needed is not None and needed not in game.fixtures:
        raise ValueError(f"goal: nothing becomes {game.goal.quality} without a {needed}")
