"""Mazes: the search is a shortest way, sides of the split share no layout, traces read back."""

import re

import numpy as np
import pytest

from learning.toy_tasks.mazes import MOVES, mazes, parse_maze, search_maze, solved_maze
from schemas.errors import StepError

BY_HAND = {"family": "mazes", "id": "x", "prompt": [{"role": "user", "content": "ab#/#ef/ghi a>f"}]}


def distances(maze):
    """Length of the shortest way from every cell to the goal, by relaxation."""
    side, free, _, goal = maze
    far = np.full((side + 2, side + 2), np.inf)
    walls = np.ones_like(far, bool)
    for r, c in free:
        walls[r + 1, c + 1] = False
    far[goal[0] + 1, goal[1] + 1] = 0
    for _ in range(side * side):
        around = np.min([np.roll(far, s, a) for s in (1, -1) for a in (0, 1)], 0) + 1
        far = np.where(walls, np.inf, np.minimum(far, around))
    return far[1:-1, 1:-1]


def test_the_search_of_a_maze_by_hand():
    # From f: down to i, left to e; from i: h; from e: b above it (down is h, reached before); from h: g; from b: a.
    assert solved_maze(BY_HAND, None) == "fie;ih;eb;hg;ba;#R"
    assert solved_maze(BY_HAND, None, trace="none") == "#R"
    assert parse_maze(BY_HAND)[2:] == ((0, 0), (1, 2))


def test_every_clause_is_a_step_further_and_the_move_begins_a_shortest_way():
    for row in mazes(size=60, split="train", seed=3):
        maze = parse_maze(row)
        far, (r, c) = distances(maze), maze[2]
        clauses = search_maze(maze)
        assert [far[cell] for cell, _ in clauses] == sorted(far[cell] for cell, _ in clauses)
        assert all(far[new] == far[cell] + 1 for cell, reached in clauses for new in reached)
        down, right = MOVES[row["answer"]]
        assert far[r + down, c + right] == far[r, c] - 1
        assert re.fullmatch(rf"([a-y]+;)+#{row['answer']}", solved_maze(row, None))


def test_sides_share_no_walls_and_goal():
    def layouts(split):
        rows = mazes(size=80, split=split, side=3, walls=0.2)
        return {re.sub(r" \w>", " ", row["prompt"][0]["content"]) for row in rows}

    assert not layouts("train") & layouts("test")
    assert mazes(size=5, split="test", seed=1) == mazes(size=5, split="test", seed=1)


def test_too_small_a_space_and_rows_of_another_kind_are_refused():
    with pytest.raises(StepError, match="problems for `size: 100`; raise `side`"):
        mazes(size=100, split="train", side=2)
    with pytest.raises(StepError, match="is not a maze"):
        solved_maze({"family": "countdown", "id": "x"}, None)
