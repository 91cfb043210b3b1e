"""Mazes and the search that solves them, as text.

A maze of side s is s lines of s characters, joined by `/`: `.` free, `#` wall, `A` where one is, `G` the goal. The
answer is the first move of a shortest way: U, D, L or R. The procedure is breadth-first search from the goal: cells are
letters from `a` on, row by row, and `gL` says that `g` was reached and that its way to the goal begins with L.
"""

import hashlib
import json
from collections import deque
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from schemas.errors import StepError

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
BACK = {"U": "D", "D": "U", "L": "R", "R": "L"}
Cell = tuple[int, int]


def mazes(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    side: Annotated[int, Field(ge=2, le=5)] = 5,
    walls: Annotated[float, Field(ge=0, lt=1)] = 0.3,
) -> list[dict[str, Any]]:
    """`size` solvable mazes; walls and goal decide the side of the split, so that a test maze is an unseen maze.

    `walls` is the chance that a cell is one. Raises StepError when the space holds too few.
    """
    rng = np.random.default_rng([seed, side])
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(200 * size):
        grid = np.where(rng.random((side, side)) < walls, "#", ".")
        start, goal = (divmod(int(place), side) for place in rng.choice(side * side, 2, replace=False))
        grid[start], grid[goal] = ".", "G"
        hidden = hashlib.sha256(f"maze\n{drawn(grid)}".encode()).digest()
        grid[start] = "A"
        if (int.from_bytes(hidden[:8], "big") < test_share * 2**64) != (split == "test"):
            continue
        reached = dict(search(grid))
        if start in reached:
            row = _row(drawn(grid), reached[start])
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"mazes: found {len(rows)} {split} mazes of {size}; raise `side` or lower `walls`")


def search(grid: np.ndarray) -> list[tuple[Cell, str]]:
    """Breadth-first from the goal until the agent is reached: each cell with the move that leads back towards it."""
    (goal,) = map(tuple, np.argwhere(grid == "G").tolist())
    seen, found, waiting = {goal}, [], deque([goal])
    while waiting:
        row, column = waiting.popleft()
        for move, (down, right) in MOVES.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid)
            if not inside or cell in seen or grid[cell] == "#":
                continue
            seen.add(cell)
            found.append((cell, BACK[move]))
            if grid[cell] == "A":
                return found
            waiting.append(cell)
    return found


def solved_maze(
    row: dict[str, Any], rng: np.random.Generator, *, trace: Literal["bfs", "none"] = "bfs", marker: str = "#"
) -> str:
    """The search cell by cell, then the move: `bLgU#U`; with `trace: none` the move alone, as in plain cloning.

    Raises StepError for a row that is not a maze.
    """
    if row["family"] != "mazes":
        raise StepError(f"teacher solved_maze: row {row['id']} is not a maze")
    grid = np.array([list(line) for line in row["prompt"][-1]["content"].split("/")])
    steps = search(grid)
    said = "".join(f"{name_of(cell, len(grid))}{move}" for cell, move in steps)
    return f"{said if trace == 'bfs' else ''}{marker}{steps[-1][1]}"


def name_of(cell: Cell, side: int) -> str:
    """The letter of a cell."""
    return chr(ord("a") + cell[0] * side + cell[1])


def drawn(grid: np.ndarray) -> str:
    """The maze as text."""
    return "/".join("".join(line) for line in grid)


def _row(text: str, move: str) -> dict[str, Any]:
    return {
        "id": hashlib.sha256(f"mazes\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": move,
        "family": "mazes",
        "metadata": json.dumps({"side": text.count("/") + 1}),
    }
