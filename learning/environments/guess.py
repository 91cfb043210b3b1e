"""Guess the number: the model says one, and hears whether the hidden one is higher or lower, until it has found it."""

from typing import Any

from learning.environments.protocol import Episode, Outcome
from schemas.errors import StepError

LONGEST = 300
"""Digits of a number that is read."""


class Environment:
    """The hidden number is the row's `answer`; a turn of the model is a number and nothing else.

    Finding it earns 1, less `cost` for every turn before; `higher` and `lower` are what is said of a number that is
    too small or too large, and `unclear` to a turn that is no number.
    """

    def __init__(
        self, *, higher: str = "higher", lower: str = "lower", unclear: str = "a number?", cost: float = 0.0
    ) -> None:
        self.higher, self.lower, self.unclear, self.cost = higher, lower, unclear, cost

    def begin(self, row: dict[str, Any], seed: int) -> Episode:
        """An episode of a row. Raises StepError where its answer is no number."""
        hidden = parse_number(str(row.get("answer")))
        if hidden is None:
            raise StepError(f"env guess: row {row.get('id')}: its answer {row.get('answer')!r} is no whole number")
        return Game(self, hidden)


class Game:
    """One number to be found."""

    def __init__(self, world: Environment, hidden: int) -> None:
        self.world, self.hidden, self.said = world, hidden, 0

    def step(self, action: str) -> Outcome:
        """What is said of a guess."""
        guess, world = parse_number(action), self.world
        self.said += 1
        if guess is None:
            return Outcome(world.unclear, ok=False)
        if guess == self.hidden:
            return Outcome(done=True, reward=1.0 - world.cost * (self.said - 1))
        return Outcome(world.higher if guess < self.hidden else world.lower)


def parse_number(text: str) -> int | None:
    """The whole number, of at most `LONGEST` digits, that a text is; None for any other text."""
    text = text.strip()
    digits = text.removeprefix("-")
    return int(text) if len(digits) <= LONGEST and digits.isascii() and digits.isdigit() else None
