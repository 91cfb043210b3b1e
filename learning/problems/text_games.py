"""Problems of the text game: worlds drawn at random, kept if their shortest solution has the requested length."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.text_game.rows import make_row
from learning.text_game.solver import solve
from learning.text_game.world import CRAFTS, DIRECTIONS, Goal, Holder, State, World, name_door
from schemas.errors import StepError

ROOMS = (
    *("kitchen", "hall", "attic", "cellar", "study", "porch", "garden", "pantry", "library", "garage", "bedroom"),
    *("bathroom", "nursery", "parlor", "office", "shed", "tower", "chapel", "gallery", "lobby", "stable", "balcony"),
    *("laundry", "den", "vault"),
)
ITEMS = ("cup", "egg", "pen", "book", "coin", "apple", "lamp", "rope", "spoon", "shirt", "plate", "map")
SHELVES = ("table", "shelf", "desk", "bench")
BOXES = ("chest", "box", "drawer", "cabinet", "safe", "basket")
KEYS = ("red key", "blue key", "green key", "white key")
WIDTH = 5
"""Rooms lie on a square map of this width."""
MAX_DRAWS = 400
"""Worlds drawn per problem after which there are too few."""


def text_games(
    *,
    size: Annotated[int, Field(ge=1)],
    split: Literal["train", "test"],
    seed: int = 0,
    turns: Annotated[list[Annotated[int, Field(ge=1, le=40)]], Field(min_length=1)] = [4, 5, 6],  # noqa: B006
    rooms: Annotated[int, Field(ge=1, le=25)] = 4,
    items: Annotated[int, Field(ge=1, le=12)] = 3,
    holders: Annotated[int, Field(ge=1, le=10)] = 3,
    locks: Annotated[int, Field(ge=0, le=4)] = 1,
    crafts: bool = True,
    instruction: str = "",
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` different text games for the train or test split, cycling through `turns`.

    `turns` is the difficulty: the number of turns of the shortest solution, also in the row's family (`text_game5`). A
    world has that many `rooms`, `items` and `holders`, and up to `locks` locked doors or holders; with `crafts` the
    item must be washed or heated in some games. `instruction` begins the prompt. Raise StepError if there are too few.
    """
    rng, rows = np.random.default_rng(seed), dict[str, Row]()
    for _ in range(MAX_DRAWS * size):
        wanted = turns[len(rows) % len(turns)]
        world, state = draw_game(rng, rooms, items, holders, locks, crafts=crafts)
        plan = solve(world, state, wanted)
        if plan is None or len(plan) != wanted:
            continue
        row = make_row(world, state, wanted, instruction)
        if (int(row["id"], 16) < test_share * 2**64) == (split == "test"):
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(
        f"text_games: {MAX_DRAWS * size} worlds gave {len(rows)} different {split} problems for `size: {size}`; lower "
        "`size` or `turns`, or allow more `rooms` and `locks`"
    )


def draw_game(
    rng: np.random.Generator, rooms: int, items: int, holders: int, locks: int, *, crafts: bool
) -> tuple[World, State]:
    """Return a random world and its first state; perhaps without a solution."""
    exits = _draw_map(rng, rooms)
    names = list(exits)
    furniture = _draw_holders(rng, names, holders)
    doors: dict[str, str | None] = {}
    keys = [str(key) for key in rng.permutation(KEYS)[: int(rng.integers(locks + 1))]]
    passages = sorted({name_door(room, other) for room, around in exits.items() for other in around.values()})
    for key in keys:
        boxes = [name for name, holder in furniture.items() if holder.opens and holder.key is None]
        free = [door for door in passages if door not in doors]
        if free and (not boxes or rng.random() < 0.5):
            doors[free[int(rng.integers(len(free)))]] = key
        elif boxes:
            box = boxes[int(rng.integers(len(boxes)))]
            furniture[box] = Holder(furniture[box].room, opens=True, key=key)
    things = [str(item) for item in rng.permutation(ITEMS)[:items]]
    quality = list(dict.fromkeys(quality for _, quality in CRAFTS.values()))[int(rng.integers(len(CRAFTS)))]
    crafted = crafts and rng.random() < 1 / 3
    fixtures = {fixture: names[int(rng.integers(len(names)))] for fixture, _ in CRAFTS.values()} if crafts else {}
    goal = Goal(things[0], str(rng.choice(list(furniture))), quality if crafted else None)
    order = tuple(str(one) for one in rng.permutation([*things, *keys]))
    places = tuple(str(rng.choice([*names, *furniture])) for _ in order)
    world = World(exits, doors, furniture, fixtures, order, goal)
    return world, State(names[int(rng.integers(len(names)))], places)


def _draw_map(rng: np.random.Generator, rooms: int) -> dict[str, dict[str, str]]:
    """Return connected rooms on a square map, in the order of their names here; neighbours mostly have a passage."""
    names = [str(name) for name in rng.permutation(ROOMS)[:rooms]]
    places = {(int(rng.integers(WIDTH)), int(rng.integers(WIDTH))): names[0]}
    exits: dict[str, dict[str, str]] = {name: {} for name in names}
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    while len(places) < rooms:
        free = [
            (place, direction, there)
            for place in places
            for direction, (dx, dy) in DIRECTIONS.items()
            if (there := (place[0] + dx, place[1] + dy)) not in places and max(there) < WIDTH and min(there) >= 0
        ]
        place, direction, there = free[int(rng.integers(len(free)))]
        room = names[len(places)]
        places[there] = room
        exits[places[place]][direction], exits[room][opposite[direction]] = room, places[place]
    for (x, y), room in places.items():
        for direction in ("north", "east"):
            other = places.get((x + DIRECTIONS[direction][0], y + DIRECTIONS[direction][1]))
            if other is not None and rng.random() < 0.3:
                exits[room][direction], exits[other][opposite[direction]] = other, room
    return {room: {d: around[d] for d in DIRECTIONS if d in around} for room, around in exits.items()}


def _draw_holders(rng: np.random.Generator, rooms: list[str], count: int) -> dict[str, Holder]:
    """Return furniture in random rooms; boxes open, shelves need not."""
    names = [str(name) for name in rng.permutation([*SHELVES, *BOXES])[:count]]
    return {name: Holder(rooms[int(rng.integers(len(rooms)))], opens=name in BOXES) for name in names}
