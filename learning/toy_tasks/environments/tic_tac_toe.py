"""Environment `tic_tac_toe`: the model plays from a position against a player of a given strength."""

import numpy as np

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.rows import Rate
from learning.toy_tasks.tic_tac_toe import (
    choose_move,
    compute_value,
    find_result,
    find_side,
    get_board,
    make_move,
    read_move,
    write_board,
)

LOST = -1


class Environment:
    """The model moves first from the position of the row; the answer is the board after the other's move.

    The end earns 1 − (value − result)/2, at most 1: 1 for at least what perfect play gets, ½ for a draw in place of a
    win or a loss in place of a draw, 0 for a loss in place of a win. Anything but the number of an empty cell loses.
    `errors` is the probability that the other player moves at random.
    """

    def __init__(self, *, errors: Rate = 0.0) -> None:
        self.errors = errors

    def begin(self, row: Row, seed: int) -> "Game":
        """Return an episode of a position; raise StepError if the row has none."""
        return Game(self, get_board(row), seed)


class Game:
    """A game that goes on from a position."""

    def __init__(self, environment: Environment, board: str, seed: int) -> None:
        self.environment, self.board, self.seed = environment, board, seed
        self.side, self.value = find_side(board), compute_value(board)

    @property
    def state_name(self) -> str:
        """Return the board: equal positions are compared."""
        return self.board

    def step(self, action: str) -> Outcome:
        """Make the model's move and the answer to it."""
        cell = read_move(action, self.board)
        if cell is None:
            return self._end(LOST, ok=False)
        self.board = make_move(self.board, cell)
        if find_result(self.board) is None:
            # A function of the seed and the board, so that a restored game goes on alike.
            rng = np.random.default_rng([self.seed, *self.board.encode()])
            self.board = make_move(self.board, int(choose_move(self.board, rng, self.environment.errors)) - 1)
        result = find_result(self.board)
        if result is None:
            return Outcome(write_board(self.board))
        return self._end(result if self.side == "x" else -result)

    def _end(self, result: int, *, ok: bool = True) -> Outcome:
        return Outcome(done=True, reward=min(1.0, 1 - (self.value - result) / 2), ok=ok)

    def save(self) -> Row:
        """Return the board as JSON."""
        return {"board": self.board}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.board = saved["board"]
