"""Games of TextWorld (Côté et al. 2018), played by TextWorld's own logic: facts, commands and quests.

What is seen is written from the facts that the player can see. No program of a game runs, so a model's turn is one of
the commands that the logic admits in a state, or nothing.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from learning.data.rows import Row
from schemas.errors import StepError

WAYS = ("north", "east", "south", "west")
SHOWN = ("examine", "inventory", "look")
"""Verbs of commands that show what every answer shows."""
STATES = ("open", "closed", "locked")


class World:
    """A game and its commands."""

    def __init__(self, game: Any) -> None:
        from textworld.generator.inform7 import Inform7Game  # an optional dependency

        self.game, self.writer = game, Inform7Game(game)
        self.objective = " ".join((game.objective or "").split())

    def begin(self) -> Any:
        """Return the progress of an episode, which `update` changes."""
        from textworld.generator.game import GameProgression  # an optional dependency

        return GameProgression(self.game, track_quests=True)

    def list_commands(self, progress: Any) -> dict[str, Any]:
        """Return the actions that are possible, by their commands in order."""
        actions = progress.valid_actions
        named = dict(zip(self.writer.gen_commands_from_actions(actions), actions, strict=True))
        return {name: named[name] for name in sorted(named) if name.partition(" ")[0] not in SHOWN}

    def carry_out(self, command: str, progress: Any) -> bool:
        """Carry a command out; return whether the state admits it, else nothing changes."""
        action = self.list_commands(progress).get(command)
        if action is not None:
            progress.update(action)
        return action is not None

    def show(self, progress: Any, *, lists_commands: bool) -> str:
        """Return what the player sees, and in another line the commands that are possible if they are listed."""
        commands = self.list_commands(progress) if lists_commands else ()
        return "\n".join([self.describe(progress), *([f"commands: {', '.join(commands)}"] if commands else [])])

    def find_best(self, progress: Any) -> str | None:
        """Return the next command of a way to win; None if the game is over or cannot be won any more."""
        policy = progress.winning_policy
        return str(self.writer.gen_commands_from_actions(policy[:1])[0]) if policy else None

    def describe(self, progress: Any) -> str:
        """Return what the player sees: the room, its exits, what is in it and in open things, what is carried."""
        facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for fact in progress.state.facts:
            facts[fact.name].append(tuple(one.name for one in fact.arguments))
        (place,) = (where for who, where in facts["at"] if who == "P")
        here = sorted(self._describe(who, facts) for who, where in facts["at"] if where == place and who != "P")
        exits = [exit for way in WAYS if (exit := self._describe_exit(way, place, facts))]
        carried = sorted(self._name(who) for who, where in facts["in"] if where == "I")
        return "\n".join(
            [
                self._name(place),
                f"exits: {', '.join(exits) or 'none'}",
                *([f"here: {'; '.join(here)}"] if here else []),
                f"you have: {', '.join(carried) or 'nothing'}",
            ]
        )

    def _describe_exit(self, way: str, place: str, facts: Mapping[str, list[tuple[str, ...]]]) -> str:
        beyond = [there for there, here in facts[f"{way}_of"] if here == place]
        doors = [
            self._describe(door, facts) for here, door, there in facts["link"] if here == place and there in beyond
        ]
        return " by ".join([way, *doors]) if beyond else ""

    def _describe(self, thing: str, facts: Mapping[str, list[tuple[str, ...]]]) -> str:
        """Return a thing's name with its state, and what can be seen in or on it."""
        states = [state for state in STATES if (thing,) in facts[state]]
        inside = facts["in"] if "open" in states else []
        things = sorted(self._name(who) for who, where in [*inside, *facts["on"]] if where == thing)
        marks = [*states, *([f"with {' and '.join(things)}"] if things else [])]
        return f"{self._name(thing)} ({', '.join(marks)})" if marks else self._name(thing)

    def _name(self, variable: str) -> str:
        return str(self.game.infos[variable].name)


def generate_game(number: int, *, rooms: int, objects: int, quest: int, hints: bool) -> tuple[World, str]:
    """Return a game of TextWorld's generator and its JSON: the same for the same numbers. Raise StepError without it.

    Its quest takes up to `quest` commands; with `hints` its objective names all of them, else the last one.
    """
    try:
        from textworld import GameOptions
        from textworld.generator import make_game
    except ImportError as error:
        raise StepError(f"textworld: {error}: pip install 'posttrain[textworld]'") from error
    options = GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest
    options.grammar.only_last_action = not hints
    options.seeds = number
    game = make_game(options)
    return World(game), json.dumps(game.serialize())


def read_game(row: Row) -> World:
    """Return the game of a row, as JSON of TextWorld in its metadata. Raise StepError if it has none."""
    try:
        return _read(json.loads(row["metadata"] or "")["textworld"])
    except ImportError as error:
        raise StepError(f"textworld: {error}: pip install 'posttrain[textworld]'") from error
    except (AttributeError, AssertionError, KeyError, TypeError, ValueError) as error:
        raise StepError(
            f"row {row.get('id')}: its metadata has no game of TextWorld under `textworld`, as JSON: "
            f"{type(error).__name__}: {error}"
        ) from error


@lru_cache(maxsize=1024)
def _read(text: str) -> World:
    import textworld  # an optional dependency

    return World(textworld.Game.deserialize(json.loads(text)))


def replay(row: Row) -> tuple[World, Any]:
    """Return the game of a row and its progress after the turns of the assistant in the prompt."""
    world = read_game(row)
    progress = world.begin()
    for message in row["prompt"]:
        if message["role"] == "assistant":
            world.carry_out(str(message["content"]), progress)
    return world, progress
