"""Rules of the text game: what a player sees in a state, which actions are possible, and the state after an action.

    put the clean cup in the chest            the goal (first message only)
    kitchen: sink, shelf (cup), chest (red lock)
    exits: north, east (closed)
    you have: red key

`go north`, `open chest`, `open east`, `take cup`, `put cup in chest`, `drop cup`, `wash cup` at a sink, `heat cup` at a
stove, `look`. What has a lock opens with the key of its colour in hand, and stays open. Nothing is ever lost, so that a
game that can be solved at its start can be solved from every later state.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

DIRECTIONS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
"""Directions, each with its step on the map."""
CRAFTS = {"wash": ("sink", "clean"), "heat": ("stove", "hot")}
"""Verbs that change an item in hand: the fixture that they need, and what the item is afterwards."""
HAND = "you"
"""Place of the items that the player carries."""
PUT = re.compile(r"put (.+) in (.+)")


@dataclass(frozen=True)
class Holder:
    """Furniture that holds items; one that opens starts closed, and one with a `key` locked."""

    room: str
    opens: bool = False
    key: str | None = None


@dataclass(frozen=True)
class Goal:
    """An item that is to be in a holder, perhaps clean or hot."""

    item: str
    holder: str
    quality: str | None = None

    def __str__(self) -> str:
        """Return it as the player reads it."""
        item = self.item if self.quality is None else f"{self.quality} {self.item}"
        return f"put the {item} in the {self.holder}"


@dataclass(frozen=True)
class World:
    """What never changes in a game."""

    exits: dict[str, dict[str, str]]
    """Of each room: direction to the room there."""
    doors: dict[str, str | None]
    """Passages with a door, by `name_door`: its key; None: closed without a lock."""
    holders: dict[str, Holder]
    fixtures: dict[str, str]
    """Sinks and stoves, each with its room."""
    items: tuple[str, ...]
    goal: Goal


@dataclass(frozen=True)
class State:
    """What actions change."""

    room: str
    places: tuple[str, ...]
    """Where each item of the world is: a room, a holder, or HAND."""
    opened: frozenset[str] = frozenset()
    """Holders and doors that were opened."""
    qualities: frozenset[str] = frozenset()
    """Items that were changed, such as `clean cup`."""


def name_door(one: str, other: str) -> str:
    """Return the name of the door between two rooms."""
    return " | ".join(sorted((one, other)))


def is_solved(world: World, state: State) -> bool:
    """Return whether the goal is reached."""
    goal = world.goal
    made = goal.quality is None or f"{goal.quality} {goal.item}" in state.qualities
    return made and locate(world, state, goal.item) == goal.holder


def locate(world: World, state: State, item: str) -> str:
    """Return the place of an item."""
    return state.places[world.items.index(item)]


def describe(world: World, state: State) -> str:
    """Return what the player sees."""
    fixtures = [name for name, room in world.fixtures.items() if room == state.room]
    holders = [
        f"{name} ({_describe_holder(world, state, name)})"
        for name, holder in world.holders.items()
        if holder.room == state.room
    ]
    exits = [
        direction
        + (f" ({_describe_lock(world.doors[door])})" if door in world.doors and door not in state.opened else "")
        for direction, room in world.exits[state.room].items()
        if (door := name_door(state.room, room))
    ]
    seen = ", ".join([*fixtures, *holders, *_list_items(world, state, state.room)]) or "nothing"
    carried = ", ".join(_list_items(world, state, HAND)) or "nothing"
    return f"{state.room}: {seen}\nexits: {', '.join(exits)}\nyou have: {carried}"


def _describe_holder(world: World, state: State, name: str) -> str:
    if not is_open(world, state, name):
        return _describe_lock(world.holders[name].key)
    return ", ".join(_list_items(world, state, name)) or "empty"


def _describe_lock(key: str | None) -> str:
    return "closed" if key is None else key.replace("key", "lock")


def _list_items(world: World, state: State, place: str) -> list[str]:
    """Return the items of a place, with their qualities."""
    names = [item for item, where in zip(world.items, state.places, strict=True) if where == place]
    return [" ".join([*(q for _, q in CRAFTS.values() if f"{q} {name}" in state.qualities), name]) for name in names]


def is_open(world: World, state: State, name: str) -> bool:
    """Return whether a holder shows its items."""
    return not world.holders[name].opens or name in state.opened


def act(world: World, state: State, action: str) -> State | None:
    """Return the state after an action; None if it is not possible."""
    verb, _, rest = " ".join(action.split()).casefold().partition(" ")
    if verb == "look" and not rest:
        return state
    if verb == "go":
        return _go(world, state, rest)
    if verb == "open":
        return _open(world, state, rest)
    if verb == "take" and rest in world.items:
        reached = locate(world, state, rest) in list_reached(world, state)
        return _move(world, state, rest, HAND) if reached else None
    if verb in CRAFTS:
        return _craft(world, state, verb, rest)
    if verb == "drop":
        return _put(world, state, rest, state.room)
    put = PUT.fullmatch(f"{verb} {rest}")
    if put is None or put[2] not in list_reached(world, state)[1:]:
        return None
    return _put(world, state, put[1], put[2])


def list_reached(world: World, state: State) -> list[str]:
    """Return the places whose items can be taken: the room, then its open holders."""
    holders = [name for name, holder in world.holders.items() if holder.room == state.room]
    return [state.room, *(name for name in holders if is_open(world, state, name))]


def _go(world: World, state: State, direction: str) -> State | None:
    room = world.exits[state.room].get(direction)
    if room is None:
        return None
    door = name_door(state.room, room)
    return None if door in world.doors and door not in state.opened else replace(state, room=room)


def _open(world: World, state: State, thing: str) -> State | None:
    """Open a holder of this room, or the door in a direction."""
    if thing in DIRECTIONS:
        name = name_door(state.room, world.exits[state.room].get(thing, ""))
        closed, key = name in world.doors, world.doors.get(name)
    else:
        name, holder = thing, world.holders.get(thing)
        closed = holder is not None and holder.room == state.room and holder.opens
        key = None if holder is None else holder.key
    if not closed or name in state.opened or (key is not None and locate(world, state, key) != HAND):
        return None
    return replace(state, opened=state.opened | {name})


def _craft(world: World, state: State, verb: str, item: str) -> State | None:
    fixture, quality = CRAFTS[verb]
    if world.fixtures.get(fixture) != state.room or item not in world.items or locate(world, state, item) != HAND:
        return None
    return replace(state, qualities=state.qualities | {f"{quality} {item}"})


def _put(world: World, state: State, item: str, place: str) -> State | None:
    if item not in world.items or locate(world, state, item) != HAND:
        return None
    return _move(world, state, item, place)


def _move(world: World, state: State, item: str, place: str) -> State:
    places = list(state.places)
    places[world.items.index(item)] = place
    return replace(state, places=tuple(places))


def list_actions(world: World, state: State) -> Iterator[str]:
    """Yield every possible action that changes the state."""
    reached = list_reached(world, state)
    carried = [item for item, place in zip(world.items, state.places, strict=True) if place == HAND]
    things = [*world.exits[state.room], *(name for name, holder in world.holders.items() if holder.room == state.room)]
    candidates = [
        *(f"go {direction}" for direction in world.exits[state.room]),
        *(f"open {thing}" for thing in things),
        *(f"take {item}" for item, place in zip(world.items, state.places, strict=True) if place in reached),
        *(f"put {item} in {holder}" for item in carried for holder in reached[1:]),
        *(f"{verb} {item}" for verb in CRAFTS for item in carried),
        *(f"drop {item}" for item in carried),
    ]
    for action in candidates:
        after = act(world, state, action)
        if after is not None and after != state:
            yield action
