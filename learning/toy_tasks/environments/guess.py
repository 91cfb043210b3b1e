"""Environment `guess`: the model guesses numbers; the reply is whether the hidden one is higher or lower."""

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from schemas.errors import StepError

LONGEST = 300
"""The most digits of a number."""


class Environment:
    """The hidden number is the row's `answer`; a turn of the model is a number and nothing else.

    The right number has reward 1, minus `cost` for every turn before. `higher` and `lower` are the replies to a number
    that is too small or too large, `unclear` that to a turn that is not a number.
    """

    def __init__(
        self, *, higher: str = "higher", lower: str = "lower", unclear: str = "a number?", cost: float = 0.0
    ) -> None:
        self.higher, self.lower, self.unclear, self.cost = higher, lower, unclear, cost

    def begin(self, row: Row, seed: int) -> "Game":
        """Return an episode of a row; raise StepError if its answer is not an integer."""
        hidden = parse_number(str(row.get("answer")))
        if hidden is None:
            raise StepError(f"env guess: row {row.get('id')}: the answer {row.get('answer')!r} is not an integer")
        return Game(self, hidden)


class Game:
    """One episode with a hidden number."""

    def __init__(self, environment: Environment, hidden: int) -> None:
        self.environment, self.hidden, self.turns = environment, hidden, 0

    def step(self, action: str) -> Outcome:
        """Return the reply to a guess."""
        guess, environment = parse_number(action), self.environment
        self.turns += 1
        if guess is None:
            return Outcome(environment.unclear, ok=False)
        if guess == self.hidden:
            return Outcome(done=True, reward=1.0 - environment.cost * (self.turns - 1))
        return Outcome(environment.higher if guess < self.hidden else environment.lower)

    def save(self) -> Row:
        """Return the state of the game as JSON."""
        return {"turns": self.turns}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.turns = saved["turns"]


def parse_number(text: str) -> int | None:
    """Return the integer, of at most `LONGEST` digits, that a text consists of; None for other texts."""
    text = text.strip()
    digits = text.removeprefix("-")
    return int(text) if len(digits) <= LONGEST and digits.isascii() and digits.isdigit() else None
