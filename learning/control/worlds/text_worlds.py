"""Worlds of text for control policies: rooms with things, and a wrapper that adds what the agent knows.

A world of text has `choices` (what each action says), `text` (what is seen now), `words` (all that its texts can have)
and `edges` (all triples of its graph), of which `graph` are those that are seen. Observations of `informed_world` are
the words that are seen, the words of the knowledge, and the edges of the graph, each 0 or 1.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import gymnasium
import numpy as np
from pydantic import Field

from learning.lookup import Inner
from learning.text_game.knowledge import CAN, DID, Fact, Kind, Knowledge, write_facts
from learning.text_game.solver import solve
from learning.text_game.world import CRAFTS, DIRECTIONS, HAND, State, World, act, describe, is_solved, name_door
from learning.text_game.written import compile_game
from schemas.control import WorldUse
from schemas.errors import StepError

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
"""Option of a function: a world, which it gets bound."""
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
WORD = re.compile(r"\w+")
OWN_WORDS = ("exits", "you", "have", "nothing", "empty", "closed", "lock", "done", "can")
"""Words of descriptions and of written facts, besides names."""
DRAWS = 100
"""Starts that are drawn until one can be solved in two actions or more."""


class TextWorld(Protocol):
    """What `informed_world` needs of a world, besides Gymnasium's methods."""

    choices: Sequence[str]
    words: Sequence[str]
    edges: Sequence[Fact]

    @property
    def text(self) -> str:
        """Return what is seen now."""
        ...

    @property
    def graph(self) -> list[Fact]:
        """Return what is seen now as triples of `edges`."""
        ...


class TextRooms(gymnasium.Env):
    """A text game with a choice for every action that it may need; items and the first room are drawn.

    Every action earns the part of a shortest solution by which it comes nearer to the goal, or loses what it moves
    away, and the goal earns 1 and ends the episode. An action that is not possible changes nothing.
    """

    def __init__(self, world: World, start: State, limit: int) -> None:
        self.world, self.start, self.state, self.limit = world, start, start, limit
        self.choices, self.edges = _list_choices(world), _list_edges(world)
        names = [*self.choices, *world.exits, *world.holders, *world.fixtures, *world.items, *DIRECTIONS, *OWN_WORDS]
        names += [quality for _, quality in CRAFTS.values()]
        self.words = sorted({word for name in names for word in WORD.findall(name)})
        self.distances: dict[State, int | None] = {}
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (len(self.words),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.choices))

    @property
    def text(self) -> str:
        """Return what is seen now."""
        return describe(self.world, self.state)

    @property
    def graph(self) -> list[Fact]:
        """Return where visible things are, and what is closed here."""
        return _list_seen(self.world, self.state)

    def measure_distance(self, state: State) -> int | None:
        """Return the number of actions to the goal; None if there is no way."""
        if state not in self.distances:
            plan = solve(self.world, state)
            self.distances[state] = None if plan is None else len(plan)
        return self.distances[state]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw the places of items that are no keys, among their places, and the first room.

        Raise StepError if no start of many is two actions or more away from the goal.
        """
        super().reset(seed=seed)
        keys = {*self.world.doors.values(), *(holder.key for holder in self.world.holders.values())}
        free = [i for i, item in enumerate(self.world.items) if item not in keys]
        rooms = list(self.world.exits)
        for _ in range(DRAWS):
            places = list(self.start.places)
            for i, j in zip(free, self.np_random.permutation(free), strict=True):
                places[i] = self.start.places[int(j)]
            self.state = State(rooms[int(self.np_random.integers(len(rooms)))], tuple(places))
            self.whole = self.measure_distance(self.state) or 0
            if self.whole > 1:
                break
        else:
            raise StepError("text_rooms: no drawn start is two actions or more away from the goal; change the game")
        self.steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Carry out an action, if it is possible."""
        before, self.state = self.state, act(self.world, self.state, self.choices[int(action)]) or self.state
        self.steps += 1
        nearer = (self.measure_distance(before) or 0) - (self.measure_distance(self.state) or 0)
        done = is_solved(self.world, self.state)
        return self._observe(), nearer / self.whole + done, done, not done and self.steps >= self.limit, {}

    def _observe(self) -> np.ndarray:
        return _mark(self.words, WORD.findall(self.text))


class InformedWorld(gymnasium.Env):
    """Shows the words of a world of text, those of what the agent knows, and a graph.

    In the form `text` the facts are words, and the graph is empty; in the form `graph` the graph has what is seen and
    the facts as edges, and there are no words of them. Observations have the same size for all forms and knowledge.
    """

    def __init__(self, world: Any, knowledge: Knowledge, form: Literal["text", "graph"]) -> None:
        self.world, self.knowledge, self.form = world, knowledge, form
        if missing := [name for name in TextWorld.__annotations__ if not hasattr(world, name)]:
            raise StepError(f"informed_world: its world has no `{missing[0]}`; it must be a world of text")
        table = [(thing, CAN, verb) for thing, verbs in knowledge.affordances.items() for verb in verbs]
        self.edges = [*world.edges, *(("you", DID, choice) for choice in world.choices), *table]
        self.words = sorted({*world.words, *(word for fact in table for part in fact for word in WORD.findall(part))})
        size = 2 * len(self.words) + len(self.edges)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = world.action_space
        self.taken: list[tuple[str, float]] = []

    def list_facts(self) -> list[Fact]:
        """Return what the agent knows now."""
        return self.knowledge.list_facts(self.taken, self.world.text)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin without a memory."""
        super().reset(seed=seed)
        _, info = self.world.reset(seed=seed, options=options)
        self.taken = []
        return self._observe(), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Act, and remember what was paid."""
        _, reward, *rest = self.world.step(action)
        self.taken.append((self.world.choices[int(action)], float(reward)))
        return self._observe(), float(reward), *rest

    def close(self) -> None:
        """Close the world."""
        self.world.close()

    def _observe(self) -> np.ndarray:
        facts = self.list_facts()
        is_text = self.form == "text"
        known = WORD.findall(write_facts(facts)) if is_text else []
        edges = [] if is_text else [*self.world.graph, *facts]
        seen = _mark(self.words, WORD.findall(self.world.text))
        return np.concatenate([seen, _mark(self.words, known), _mark(self.edges, edges)])


def text_rooms(*, game: dict[str, Any], limit: Annotated[int, Field(ge=1)] = 20) -> TextRooms:
    """Return a text game that is written as a map (docs/turns.md), as a world. Raise StepError for another one."""
    try:
        world, start = compile_game(json.dumps(game))
    except ValueError as error:
        raise StepError(f"text_rooms: its `game`: {error}") from error
    return TextRooms(world, start, limit)


def informed_world(
    *,
    world: WorldFunction,
    knowledge: Kind = "both",
    form: Literal["text", "graph"] = "text",
    affordances: dict[str, list[str]] = {},  # noqa: B006
    shown_as: dict[str, str] = {},  # noqa: B006
) -> InformedWorld:
    """Return a world of text with what the agent knows: correct actions so far, and affordances of visible things."""
    return InformedWorld(world(), Knowledge(knowledge, affordances, shown_as), form)


def _mark(names: Sequence[Any], given: Sequence[Any]) -> np.ndarray:
    """Return 1 for each name that is given, else 0."""
    present = set(given)
    return np.array([name in present for name in names], np.float32)


def _list_choices(world: World) -> list[str]:
    """Return the actions that a solution may need, of all rooms."""
    ways = sorted({way for around in world.exits.values() for way in around}, key=list(DIRECTIONS).index)
    closed = {
        way
        for room, around in world.exits.items()
        for way, other in around.items()
        if name_door(room, other) in world.doors
    }
    things = [
        *(way for way in ways if way in closed),
        *(name for name, holder in world.holders.items() if holder.opens),
    ]
    crafts = [f"{verb} {world.goal.item}" for verb, (_, made) in CRAFTS.items() if made == world.goal.quality]
    return [
        *(f"go {way}" for way in ways),
        *(f"open {thing}" for thing in things),
        *(f"take {item}" for item in world.items),
        f"put {world.goal.item} in {world.goal.holder}",
        *crafts,
        "look",
    ]


def _list_edges(world: World) -> list[Fact]:
    places = [*world.exits, *world.holders, HAND]
    closed = [*world.doors, *(name for name, holder in world.holders.items() if holder.opens)]
    return [
        *((HAND, "in", room) for room in world.exits),
        *((item, "in", place) for item in world.items for place in places),
        *((thing, "is", "closed") for thing in closed),
    ]


def _list_seen(world: World, state: State) -> list[Fact]:
    """Return the triples of what `describe` shows."""
    here = [name for name, holder in world.holders.items() if holder.room == state.room]
    shut = [name for name in here if world.holders[name].opens and name not in state.opened]
    doors = [name_door(state.room, other) for other in world.exits[state.room].values()]
    shut += [door for door in doors if door in world.doors and door not in state.opened]
    visible = {state.room, HAND, *(name for name in here if name not in shut)}
    places = [(item, "in", where) for item, where in zip(world.items, state.places, strict=True) if where in visible]
    return [(HAND, "in", state.room), *places, *((thing, "is", "closed") for thing in shut)]
