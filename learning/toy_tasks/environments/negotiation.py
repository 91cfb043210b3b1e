"""Environment `negotiation`: the model divides goods with a player of a given strength, and makes the first offer."""

import numpy as np

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.negotiation import Table, View, begin, choose_turn, solve
from learning.toy_tasks.rows import Rate


class Environment:
    """The model makes the first offer; the answer is what it sees after the other's turn.

    The end earns 1 − (value − earned), at most 1: 1 for at least what perfect play gets, less by what was given away.
    A turn that is neither an offer nor `yes` ends the game with 0. `errors` is the probability that the other player
    makes any turn that the game allows.
    """

    def __init__(self, *, errors: Rate = 0.0) -> None:
        self.errors = errors

    def begin(self, row: Row, seed: int) -> "Game":
        """Return an episode of a row's goods; raise StepError if it has none."""
        return Game(self, begin(row), seed)


class Game:
    """A negotiation in progress, at a turn of the model."""

    def __init__(self, environment: Environment, table: Table, seed: int) -> None:
        self.environment, self.table, self.seed = environment, table, seed
        view = table.view
        self.value = float(solve(view.goods, view.mine, view.theirs, view.left).own / view.left)

    @property
    def state_name(self) -> str:
        """Return what the model sees: equal views are compared."""
        return self.table.view.write()

    def step(self, action: str) -> Outcome:
        """Make the model's turn and the answer to it."""
        after = self.table.move(action)
        if after is None:
            return Outcome(done=True, reward=0.0, ok=False)
        if isinstance(after, tuple):
            return self._end(after[0])
        # A function of the seed and the view, so that a restored game goes on alike.
        rng = np.random.default_rng([self.seed, *after.view.write().encode()])
        answered = after.move(choose_turn(after.view, rng, self.environment.errors))
        if isinstance(answered, Table):
            self.table = answered
            return Outcome(answered.view.write())
        return self._end(answered[1] if answered else 0.0)

    def _end(self, earned: float) -> Outcome:
        return Outcome(done=True, reward=min(1.0, 1 - (self.value - earned)), ok=True)

    def save(self) -> Row:
        """Return what the model sees, and how many offers the game has, as JSON."""
        return {"view": vars(self.table.view), "rounds": self.table.rounds}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        goods, mine, theirs, left, offer = (
            saved["view"][name] for name in ("goods", "mine", "theirs", "left", "offer")
        )
        view = View(tuple(goods), tuple(mine), tuple(theirs), left, None if offer is None else tuple(offer))
        self.table = Table(view, saved["rounds"])
