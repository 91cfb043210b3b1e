"""Mazes as text, and the search that solves them.

The cells of a maze of side s are letters from `a` on, row by row, and a wall is `#`; the cells of the agent and the
goal follow: `ab#d/efgh/#jkl/mnop d>m`. The answer is the first move of a shortest path: U, D, L or R. The procedure is
breadth-first search from the goal until the agent is reached, one clause per visited cell: `mi;in;` means that cell i
was reached from m, and cell n from i.
"""

from collections import deque
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row
from schemas.errors import StepError

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
Cell = tuple[int, int]
Maze = tuple[int, frozenset[Cell], Cell, Cell]
"""Side, free cells, cell of the agent, cell of the goal."""


def mazes(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    side: Annotated[int, Field(ge=2, le=5)] = 5,
    walls: Annotated[float, Field(ge=0, lt=1)] = 0.3,
) -> list[Row]:
    """Generate `size` solvable mazes, split by walls and goal, so that test mazes are unseen.

    `walls` is the probability that a cell is a wall. Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng([seed, side])

    def draw(_: dict[str, Row]) -> Row | None:
        open_ = rng.random((side, side)) >= walls
        start, goal = (divmod(int(place), side) for place in rng.choice(side * side, 2, replace=False))
        open_[start] = open_[goal] = True
        maze = (side, frozenset(map(tuple, np.argwhere(open_).tolist())), start, goal)
        without_agent = write_maze(maze).replace(f" {name_cell(start, side)}>", " ")
        if not is_in_split(hash_text(f"maze\n{without_agent}"), split, test_share):
            return None
        clauses = search_maze(maze)
        if start not in clauses[-1][1]:
            return None
        return make_row("mazes", write_maze(maze), find_move(start, clauses[-1][0]), {"side": side})

    return draw_rows(draw, size, 200 * size, "mazes", split, "raise `side` or lower `walls`")


def search_maze(maze: Maze) -> list[tuple[Cell, list[Cell]]]:
    """Search breadth-first from the goal to the agent; return every visited cell with the cells reached from it."""
    _, free, start, goal = maze
    visited, waiting, clauses = {goal}, deque([goal]), []
    while waiting and start not in visited:
        cell = waiting.popleft()
        reached = [c for c in ((cell[0] + d, cell[1] + r) for d, r in MOVES.values()) if c in free and c not in visited]
        if start in reached:
            reached = reached[: reached.index(start) + 1]
        visited.update(reached)
        waiting.extend(reached)
        clauses.append((cell, reached))
    return clauses


def solved_maze(row: Row, rng: np.random.Generator, *, trace: Literal["bfs", "none"] = "bfs", marker: str = "#") -> str:
    """Write the search clause by clause, then the move: `mi;ie;#R`; with `trace: none` only the move (plain cloning).

    Raise StepError if the row is not a maze.
    """
    maze = parse_maze(row)
    clauses = search_maze(maze)
    lines = "".join("".join(name_cell(cell, maze[0]) for cell in (first, *rest)) + ";" for first, rest in clauses)
    return f"{lines if trace == 'bfs' else ''}{marker}{find_move(maze[2], clauses[-1][0])}"


def parse_maze(row: Row) -> Maze:
    """Return the maze of a row; raise StepError if the row is not a maze."""
    if row["family"] != "mazes":
        raise StepError(f"teacher solved_maze: row {row['id']} is not a maze")
    plan, _, ends = row["prompt"][-1]["content"].partition(" ")
    side = plan.index("/")
    cells = {c: divmod(ord(c) - ord("a"), side) for c in plan if c.isalpha()}
    return side, frozenset(cells.values()), cells[ends[0]], cells[ends[2]]


def find_move(start: Cell, end: Cell) -> str:
    """Return the move from a cell to its neighbour."""
    return next(move for move, (d, r) in MOVES.items() if (start[0] + d, start[1] + r) == end)


def name_cell(cell: Cell, side: int) -> str:
    """Return the letter of a cell."""
    return chr(ord("a") + cell[0] * side + cell[1])


def write_maze(maze: Maze) -> str:
    """Return the maze as text."""
    side, free, start, goal = maze
    lines = ["".join(name_cell((r, c), side) if (r, c) in free else "#" for c in range(side)) for r in range(side)]
    return f"{'/'.join(lines)} {name_cell(start, side)}>{name_cell(goal, side)}"
