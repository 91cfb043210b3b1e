"""Tic-tac-toe: every position has an exact value, and the game is a draw.

A board is a text of nine characters, row by row: `x`, `o`, or `.` for an empty cell; x moves first. A move is the
number of an empty cell, 1 to 9. The value of a position is what its player to move gets if both play perfectly: 1, 0 or
−1.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.samples.conversation import NextTurn, RoleTurn
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, choose, hash_text, is_in_split, make_row
from schemas.errors import StepError

EMPTY, SIDES = ".", "xo"
START = EMPTY * 9
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
ROWS_OF_BOARD = 3


def find_side(board: str) -> str:
    """Return the side that moves next."""
    return SIDES[board.count("x") > board.count("o")]


def find_result(board: str) -> int | None:
    """Return what x has of a position: 1 won, −1 lost, 0 a full board; None if the game goes on."""
    for line in LINES:
        cells = {board[int(cell)] for cell in line}
        if len(cells) == 1 and cells != {EMPTY}:
            return 1 if cells == {"x"} else -1
    return None if EMPTY in board else 0


def make_move(board: str, cell: int) -> str:
    """Return the board after a move of the next side, in an empty cell from 0."""
    return board[:cell] + find_side(board) + board[cell + 1 :]


def list_moves(board: str) -> list[int]:
    """Return the empty cells, from 0; none of a game that is over."""
    return [] if find_result(board) is not None else [cell for cell in range(9) if board[cell] == EMPTY]


@cache
def compute_value(board: str) -> int:
    """Return the exact value of a position for the side that moves next."""
    result = find_result(board)
    if result is not None:
        return result if find_side(board) == "x" else -result
    return max(-compute_value(make_move(board, cell)) for cell in list_moves(board))


def find_best(board: str) -> list[int]:
    """Return the cells of all moves that keep the value of a position."""
    value = compute_value(board)
    return [cell for cell in list_moves(board) if -compute_value(make_move(board, cell)) == value]


def list_positions() -> list[str]:
    """Return all 5478 positions that play can reach, in the order of their moves."""
    reached, layer = [START], [START]
    while layer:
        layer = list(dict.fromkeys(make_move(board, cell) for board in layer for cell in list_moves(board)))
        reached += layer
    return reached


def find_canonical(board: str) -> str:
    """Return the first, by its characters, of the eight turned and mirrored forms of a board."""
    forms = []
    for _ in range(4):
        board = "".join(board[3 * (2 - i % 3) + i // 3] for i in range(9))
        forms += [board, "".join(board[3 * (i // 3) + 2 - i % 3] for i in range(9))]
    return min(forms)


def write_board(board: str) -> str:
    """Return a board as the players see it: its rows, with bars between them."""
    return "|".join(board[at : at + ROWS_OF_BOARD] for at in range(0, 9, ROWS_OF_BOARD))


def read_board(text: str) -> str | None:
    """Return the board that a text shows; None if it shows no position of the game."""
    board = text.replace("|", "")
    counts = board.count("x") - board.count("o")
    fits = len(board) == 9 and set(board) <= {*SIDES, EMPTY} and counts in (0, 1)
    return board if fits and write_board(board) == text else None


def read_move(text: str, board: str) -> int | None:
    """Return the empty cell, from 0, that a text names; None for anything else."""
    text = text.strip()
    cell = "123456789".find(text) if len(text) == 1 else -1
    return cell if cell in list_moves(board) else None


def tic_tac_toe_positions(
    *,
    split: Split,
    size: Size,
    seed: int = 0,
    moves: Annotated[list[Annotated[int, Field(ge=0, le=7)]], Field(min_length=1)] = [2, 3, 4],  # noqa: B006 — never changed
    exchange: bool = False,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Draw positions after so many `moves`, which the side to move does not lose, for the world `tic_tac_toe`.

    The fewer moves were made, the longer and harder is the rest. No position of one split is that of the other, turned
    or mirrored. With `exchange` every position is there twice, for the turn order `tic_tac_toe`: in the second the role
    that the recipe names last moves first. Raise StepError if there are fewer than `size` positions.
    """
    known = [board for board in list_positions() if 9 - board.count(EMPTY) in moves and list_moves(board)]
    fit = [
        board
        for board in known
        if compute_value(board) >= 0
        and is_in_split(hash_text(f"tic-tac-toe {find_canonical(board)}"), split, test_share)
    ]
    return [
        _make_row(board, leader)
        for leader in range(1 + exchange)
        for board in choose("tic_tac_toe_positions", split, fit, size, seed)
    ]


def _make_row(board: str, leader: int) -> Row:
    about = {"board": board, "value": compute_value(board), "leader": leader}
    return make_row("tic_tac_toe", write_board(board), str(about["value"]), about, salt=f"tic_tac_toe {leader}")


def get_board(row: Row) -> str:
    """Return the position that a row begins with; raise StepError for a row of another kind."""
    text = str(row["prompt"][-1]["content"])
    board = read_board(text)
    if board is None or find_result(board) is not None:
        raise StepError(f"tic_tac_toe: row {row.get('id')}: {text[:40]!r} is no open position, such as x..|.o.|...")
    return board


def tic_tac_toe_player(row: Row, rng: np.random.Generator, *, errors: Rate = 0.0) -> str:
    """Write a move that keeps the value of the position shown last, or with probability `errors` any move."""
    return choose_move(get_board(row), rng, errors)


def choose_move(board: str, rng: np.random.Generator, errors: float) -> str:
    """Return the number of a perfect move, or with probability `errors` of any move."""
    cells = list_moves(board) if rng.random() < errors else find_best(board)
    return str(int(rng.choice(cells)) + 1)


def tic_tac_toe(roles: Sequence[str], turns: Sequence[RoleTurn], row: Row) -> NextTurn:
    """Play tic-tac-toe between two roles from the position of a row; each is shown the board before its move.

    The winner earns 1 and the other loses 1; a draw is 0 for both. Anything but the number of an empty cell loses.
    Raise StepError for another number of roles, and for a row without a position.
    """
    if len(roles) != 2:
        raise StepError(f"turn_order tic_tac_toe: two roles play, not {len(roles)}")
    leader = int(json.loads(row.get("metadata") or "{}").get("leader", 0))
    players = [roles[leader], roles[1 - leader]]
    board = replay(row, turns)
    if board is None:
        loser = players[(len(turns) - 1) % 2]
        return NextTurn(None, rewards={role: -1.0 if role == loser else 1.0 for role in roles})
    result = find_result(board)
    if result is None:
        return NextTurn(players[len(turns) % 2], write_board(board))
    first = float(result) if find_side(get_board(row)) == "x" else -float(result)
    return NextTurn(None, rewards={players[0]: first, players[1]: -first})


def replay(row: Row, turns: Sequence[RoleTurn]) -> str | None:
    """Return the board after some turns; None if one of them was no move."""
    board = get_board(row)
    for turn in turns:
        cell = read_move(turn.text, board)
        if cell is None:
            return None
        board = make_move(board, cell)
    return board


def tic_tac_toe_opponent(
    role: str, turns: Sequence[RoleTurn], message: str, row: Row, rng: np.random.Generator, *, errors: Rate = 0.0
) -> str:
    """Play perfectly, but for a share of `errors`, in the turn order `tic_tac_toe`."""
    board = replay(row, turns)
    if board is None:
        raise StepError("script tic_tac_toe_opponent: it plays in the turn order `tic_tac_toe`; set that")
    return choose_move(board, rng, errors)
