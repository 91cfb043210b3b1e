"""Mazes as text, and the search that solves them.

The cells of a maze of side s are letters from `a` on, row by row, and a wall is `#`; the cells of the agent and the
goal follow: `ab#d/efgh/#jkl/mnop d>m`. The answer is the first move of a shortest path: U, D, L or R. The procedure is
breadth-first search from the goal until the agent is reached, one clause per visited cell: `mi;in;` means that cell i
was reached from m, and cell n from i.
"""

import hashlib
import json
from collections import deque
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
Cell = tuple[int, int]
Maze = tuple[int, frozenset[Cell], Cell, Cell]
"""Side, free cells, cell of the agent, cell of the goal."""


def mazes(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    side: Annotated[int, Field(ge=2, le=5)] = 5,
    walls: Annotated[float, Field(ge=0, lt=1)] = 0.3,
) -> list[Row]:
    """Generate `size` solvable mazes, split by walls and goal, so that test mazes are unseen.

    `walls` is the probability that a cell is a wall. Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng([seed, side])
    rows: dict[str, Row] = {}
    for _ in range(200 * size):
        open_ = rng.random((side, side)) >= walls
        start, goal = (divmod(int(place), side) for place in rng.choice(side * side, 2, replace=False))
        open_[start] = open_[goal] = True
        maze = (side, frozenset(map(tuple, np.argwhere(open_).tolist())), start, goal)
        hidden = hashlib.sha256(f"maze\n{drawn(maze).replace(f' {name_of(start, side)}>', ' ')}".encode()).digest()
        if (int.from_bytes(hidden[:8], "big") < test_share * 2**64) != (split == "test"):
            continue
        clauses = search(maze)
        if start in clauses[-1][1]:
            row = _row(drawn(maze), move_between(start, clauses[-1][0]))
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"mazes: found {len(rows)} {split} mazes of {size}; raise `side` or lower `walls`")


def search(maze: Maze) -> list[tuple[Cell, list[Cell]]]:
    """Search breadth-first from the goal to the agent; return every visited cell with the cells reached from it."""
    _, free, start, goal = maze
    seen, waiting, clauses = {goal}, deque([goal]), []
    while waiting and start not in seen:
        cell = waiting.popleft()
        reached = [c for c in ((cell[0] + d, cell[1] + r) for d, r in MOVES.values()) if c in free and c not in seen]
        if start in reached:
            reached = reached[: reached.index(start) + 1]
        seen.update(reached)
        waiting.extend(reached)
        clauses.append((cell, reached))
    return clauses


def solved_maze(row: Row, rng: np.random.Generator, *, trace: Literal["bfs", "none"] = "bfs", marker: str = "#") -> str:
    """Write the search clause by clause, then the move: `mi;ie;#R`; with `trace: none` only the move (plain cloning).

    Raise StepError if the row is not a maze.
    """
    maze = maze_of(row)
    clauses = search(maze)
    said = "".join("".join(name_of(cell, maze[0]) for cell in (first, *rest)) + ";" for first, rest in clauses)
    return f"{said if trace == 'bfs' else ''}{marker}{move_between(maze[2], clauses[-1][0])}"


def maze_of(row: Row) -> Maze:
    """Return the maze of a row; raise StepError if the row is not a maze."""
    if row["family"] != "mazes":
        raise StepError(f"teacher solved_maze: row {row['id']} is not a maze")
    plan, _, ends = row["prompt"][-1]["content"].partition(" ")
    side = plan.index("/")
    cells = {c: divmod(ord(c) - ord("a"), side) for c in plan if c.isalpha()}
    return side, frozenset(cells.values()), cells[ends[0]], cells[ends[2]]


def move_between(start: Cell, end: Cell) -> str:
    """Return the move from a cell to its neighbour."""
    return next(move for move, (d, r) in MOVES.items() if (start[0] + d, start[1] + r) == end)


def name_of(cell: Cell, side: int) -> str:
    """Return the letter of a cell."""
    return chr(ord("a") + cell[0] * side + cell[1])


def drawn(maze: Maze) -> str:
    """Return the maze as text."""
    side, free, start, goal = maze
    lines = ["".join(name_of((r, c), side) if (r, c) in free else "#" for c in range(side)) for r in range(side)]
    return f"{'/'.join(lines)} {name_of(start, side)}>{name_of(goal, side)}"


def _row(text: str, move: str) -> dict[str, Any]:
    return {
        "id": hashlib.sha256(f"mazes\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": move,
        "family": "mazes",
        "metadata": json.dumps({"side": text.index("/")}),
    }
