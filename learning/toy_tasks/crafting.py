"""A meadow with trees and stones in which wood leads to a table, a pickaxe and stone: its states and actions."""

import json
from dataclasses import dataclass, replace
from typing import Any

from learning.data.rows import Row
from schemas.errors import StepError

WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Directions, each with its step; rows of the map are counted downwards."""
ACTIONS = ("noop", *(f"move_{way}" for way in WAYS), "do", "place_table", "make_pickaxe")
THINGS = {"T": "tree", "S": "stone", "X": "table"}
"""What stands in a cell; the ground `.` is free."""


@dataclass(frozen=True)
class Meadow:
    """A state of the game."""

    cells: tuple[str, ...]
    at: tuple[int, int]
    facing: str = "down"
    wood: int = 0
    pickaxe: int = 0
    stone: int = 0

    def look(self, place: tuple[int, int]) -> str:
        """Return what is at a place: a thing, `grass`, or `edge` outside of the map."""
        x, y = place
        if not (0 <= y < len(self.cells) and 0 <= x < len(self.cells[0])):
            return "edge"
        return THINGS.get(self.cells[y][x], "grass")

    @property
    def ahead(self) -> tuple[int, int]:
        """Return the place that the player faces."""
        dx, dy = WAYS[self.facing]
        return self.at[0] + dx, self.at[1] + dy

    def put(self, place: tuple[int, int], mark: str) -> tuple[str, ...]:
        """Return the cells with another mark at a place."""
        x, y = place
        return tuple(line[:x] + mark + line[x + 1 :] if row == y else line for row, line in enumerate(self.cells))


def describe(state: Meadow) -> str:
    """Return what the player sees: its neighbours, the nearest thing of each kind, what it faces, what it has."""
    x, y = state.at
    near = ", ".join(f"{way} {state.look((x + dx, y + dy))}" for way, (dx, dy) in WAYS.items())
    far = ", ".join(f"{thing} {_find(state, mark)}" for mark, thing in THINGS.items())
    have = f"wood {state.wood}, pickaxe {state.pickaxe}, stone {state.stone}"
    return f"around: {near}\nnearest: {far}\nfacing: {state.facing}\nhave: {have}"


def _find(state: Meadow, mark: str) -> str:
    """Return the way to the nearest cell with a mark, as steps to the right and down; `none` without one."""
    places = [(x, y) for y, line in enumerate(state.cells) for x, cell in enumerate(line) if cell == mark]
    steps = [(x - state.at[0], y - state.at[1]) for x, y in places]
    best = min(steps, key=lambda step: (abs(step[0]) + abs(step[1]), step), default=None)
    return "none" if best is None else f"{best[0]} {best[1]}"


def act(state: Meadow, action: str) -> Meadow | None:
    """Return the state after an action; None if it is not possible."""
    way = action.removeprefix("move_")
    if action.startswith("move_") and way in WAYS:
        turned = replace(state, facing=way)
        return replace(turned, at=turned.ahead) if turned.look(turned.ahead) == "grass" else turned
    there = state.look(state.ahead)
    if action == "do" and there == "tree":
        return replace(state, wood=state.wood + 1)
    if action == "do" and there == "stone" and state.pickaxe:
        return replace(state, stone=state.stone + 1, cells=state.put(state.ahead, "."))
    if action == "place_table" and there == "grass" and state.wood:
        return replace(state, wood=state.wood - 1, cells=state.put(state.ahead, "X"))
    x, y = state.at
    beside = [state.look((x + dx, y + dy)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
    if action == "make_pickaxe" and "table" in beside and state.wood:
        return replace(state, wood=state.wood - 1, pickaxe=1)
    return state if action == "noop" else None


def read_meadow(row: Row) -> Meadow:
    """Return the first state of a problem. Raise StepError if it has none."""
    try:
        notes: Any = json.loads(row["metadata"] or "")
        return Meadow(tuple(notes["map"]), (int(notes["at"][0]), int(notes["at"][1])))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StepError(f"env crafter: row {row['id']}: its metadata have no map; use problems of `meadows`") from error
