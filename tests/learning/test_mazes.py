"""Mazes: the search is a shortest way, sides of the split share no layout, traces read back."""

import re

import numpy as np
import pytest

from learning.mazes import MOVES, mazes, search, solved_maze
from schemas.errors import StepError

GRID = "A.#/#.G/..."


def grid_of(text):
    return np.array([list(line) for line in text.split("/")])


def distances(grid):
    """Length of the shortest way from every cell to the goal, by relaxation."""
    free = np.pad(grid != "#", 1)
    far = np.where(np.pad(grid == "G", 1), 0.0, np.inf)
    for _ in range(grid.size):
        around = np.min([np.roll(far, s, a) for s in (1, -1) for a in (0, 1)], 0) + 1
        far = np.where(free, np.minimum(far, around), np.inf)
    return far[1:-1, 1:-1]


def test_the_search_of_a_maze_by_hand():
    # The cell left of the goal, below it, left of that, then the agent's column.
    found = dict(search(grid_of(GRID)))
    assert found == {(2, 2): "U", (1, 1): "R", (2, 1): "R", (0, 1): "D", (2, 0): "R", (0, 0): "R"}
    row = {"family": "mazes", "id": "x", "prompt": [{"role": "user", "content": GRID}]}
    assert solved_maze(row, None) == "iUeRhRbDgRaR#R"
    assert solved_maze(row, None, trace="none") == "#R"


def test_every_move_of_every_trace_is_the_first_of_a_shortest_way():
    for row in mazes(size=60, split="train", seed=3):
        grid = grid_of(row["prompt"][0]["content"])
        far = distances(grid)
        steps = re.findall(r"([a-y])([UDLR])", solved_maze(row, None).partition("#")[0])
        for name, move in steps:
            r, c = divmod(ord(name) - ord("a"), 5)
            down, right = MOVES[move]
            assert far[r + down, c + right] == far[r, c] - 1
        assert steps[-1][1] == row["answer"]
        assert solved_maze(row, None).endswith(f"#{row['answer']}")


def test_sides_share_no_walls_and_goal():
    def layouts(split):
        return {r["prompt"][0]["content"].replace("A", ".") for r in mazes(size=80, split=split, side=3, walls=0.2)}

    assert not layouts("train") & layouts("test")
    assert mazes(size=5, split="test", seed=1) == mazes(size=5, split="test", seed=1)


def test_too_small_a_space_and_rows_of_another_kind_are_refused():
    with pytest.raises(StepError, match="of 100; raise `side`"):
        mazes(size=100, split="train", side=2)
    with pytest.raises(StepError, match="is not a maze"):
        solved_maze({"family": "countdown", "id": "x"}, None)
