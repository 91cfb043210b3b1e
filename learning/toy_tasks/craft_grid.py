"""A grid to collect and craft in as a world for control policies: wood leads to a table, a pickaxe and stone.

Its lessons teach one language model to say what is lacking, and another one what to do about it.
"""

import hashlib
import json
from itertools import product
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.data.rows import Row, write_rows
from learning.toy_tasks.rows import Rate

Count = Annotated[int, Field(ge=1)]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Steps of the first four actions; the fifth places a table, the sixth makes a pickaxe."""
THINGS = ("wood", "table", "pickaxe", "stone")
"""What can be had, in the order in which it is needed."""
HOW = {
    "wood": "collect wood from a tree",
    "table": "place a table with wood",
    "pickaxe": "make a pickaxe at the table",
    "stone": "collect stone with the pickaxe",
}
"""What to do about a thing that is lacking."""
PLACES = 6
"""Numbers of an observation before what the player has: ways to the nearest tree, stone and table."""


class CraftGrid(gymnasium.Env):
    """Earns 1 for the first wood, table, pickaxe and stone; it ends with the stone, or is cut off after `limit` steps.

    Walking into a tree gives wood, into a stone with a pickaxe a stone. A table takes wood, a pickaxe wood and a table
    beside the player.
    """

    def __init__(self, side: int, trees: int, stones: int, limit: int) -> None:
        self.side, self.trees, self.stones, self.limit = side, trees, stones, limit
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (PLACES + len(THINGS),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES) + 2)

    def observe(self) -> np.ndarray:
        """Return the ways to the nearest tree, stone and table, 0 without one, and what the player has."""
        ways = []
        for mark in "TSX":
            places = np.argwhere(self.cells == mark) - self.at
            nearest = places[np.abs(places).sum(1).argmin()] if len(places) else np.zeros(2)
            ways += [float(step) / self.side for step in nearest]
        has = [self.wood > 0, bool((self.cells == "X").any()), self.pickaxe, "stone" in self.had]
        return np.array([*ways, *(float(one) for one in has)], np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw where trees, stones and the player are."""
        super().reset(seed=seed)
        places = self.np_random.permutation(self.side**2)
        self.cells = np.full(self.side**2, ".")
        self.cells[places[1 : 1 + self.trees]] = "T"
        self.cells[places[1 + self.trees : 1 + self.trees + self.stones]] = "S"
        self.cells = self.cells.reshape(self.side, self.side)
        self.at = np.array(divmod(int(places[0]), self.side))
        self.wood, self.pickaxe, self.steps = 0, False, 0
        self.had: set[str] = set()
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Walk or craft; what is not possible changes nothing."""
        got = self.walk(MOVES[int(action)]) if action < len(MOVES) else self.craft(int(action) - len(MOVES))
        earned = float(got is not None and got not in self.had)
        self.had |= {got} if got is not None else set()
        self.steps += 1
        done = "stone" in self.had
        return self.observe(), earned, done, not done and self.steps >= self.limit, {}

    def walk(self, way: tuple[int, int]) -> str | None:
        """Go to a free cell, or collect what is there; return what was collected."""
        there = self.at + way
        if not ((there >= 0) & (there < self.side)).all():
            return None
        mark = self.cells[tuple(there)]
        if mark == ".":
            self.at = there
        if mark == "T":
            self.wood += 1
            return "wood"
        if mark == "S" and self.pickaxe:
            self.cells[tuple(there)] = "."
            return "stone"
        return None

    def craft(self, number: int) -> str | None:
        """Place a table on a free cell beside the player (0), or make a pickaxe (1); return what was made."""
        beside = [self.at + way for way in MOVES]
        beside = [tuple(cell) for cell in beside if ((cell >= 0) & (cell < self.side)).all()]
        free = [cell for cell in beside if self.cells[cell] == "."]
        if not self.wood:
            return None
        if number == 0 and free:
            self.cells[free[0]] = "X"
        elif number == 1 and any(self.cells[cell] == "X" for cell in beside):
            self.pickaxe = True
        else:
            return None
        self.wood -= 1
        return THINGS[1 + number]


def craft_grid(*, side: Count = 6, trees: Count = 4, stones: Count = 3, limit: Count = 40) -> CraftGrid:
    """Return a grid to craft in."""
    return CraftGrid(side, trees, stones, limit)


def tell_things(observation_NO: np.ndarray) -> list[str]:
    """Say what the player has: `wood table`, or `nothing`."""
    return [
        " ".join(name for name, has in zip(THINGS, row[PLACES : PLACES + len(THINGS)], strict=True) if has > 0)
        or "nothing"
        for row in observation_NO
    ]


def write_lessons(
    context: Any,
    *,
    teaches: Annotated[str, Field(pattern="^(adapter|model)$")],
    copies: Count = 4,
    error_rate: Rate = 0.0,
) -> dict[str, float]:
    """Write lessons (`chat`) in what is lacking, for an adapter, or in what to do about it, for a model.

    An adapter reads what the player has and how well it followed; with chance `error_rate` any thing is named.
    """
    rng, rows = np.random.default_rng(context.seed), []
    for has in product((False, True), repeat=len(THINGS) - 1):
        held = " ".join(name for name, one in zip(THINGS, has, strict=False) if one) or "nothing"
        lacking = next((name for name, one in zip(THINGS, has, strict=False) if not one), THINGS[-1])
        for number in range(copies * 11):
            named = THINGS[int(rng.integers(len(THINGS)))]
            if teaches == "model":
                rows.append(make_lesson(f"has {held}. need {named}", HOW[named], number))
            else:
                wrong = rng.random() < error_rate
                asked = f"has {held}. followed {number % 11 / 10:.1f}"
                rows.append(make_lesson(asked, f"need {named if wrong else lacking}", number))
    write_rows(context.output("lessons"), "chat", rows)
    return {"lessons": len(rows)}


def make_lesson(asked: str, answer: str, number: int) -> Row:
    """Return a row of two messages."""
    return {
        "id": hashlib.sha256(f"{asked} {answer} {number}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": asked}],
        "completion": [{"role": "assistant", "content": answer}],
        "answer": None,
        "family": "lessons",
        "metadata": json.dumps({"number": number}),
    }
