"""A user's own environment: guess a number, with a hint after each guess; a guess takes a second for each digit."""

import json
import re
from collections.abc import Sequence

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.samples.conversation import NextTurn, RoleTurn


class Environment:
    """Guess the `secret` in the row's metadata; the reward is 1 for the secret, and less the further a guess is off."""

    def begin(self, row: Row, seed: int) -> "Guessing":
        """Return an episode."""
        return Guessing(json.loads(row["metadata"])["secret"])


class Guessing:
    """One number to guess."""

    def __init__(self, secret: int) -> None:
        self.secret = secret

    def step(self, action: str) -> Outcome:
        """Compare the last number of a turn with the secret."""
        numbers = re.findall(r"\d{1,4}", action)
        if not numbers:
            return Outcome("Say a number.", reward=0.0, seconds=1.0, ok=False)
        guess = int(numbers[-1])
        hint = "It is higher." if guess < self.secret else "It is lower."
        reward = 1 / (1 + abs(guess - self.secret))
        return Outcome(hint, done=guess == self.secret, reward=reward, seconds=float(len(numbers[-1])))


def guess_together(roles: Sequence[str], turns: Sequence[RoleTurn], row: Row) -> NextTurn:
    """Two players say one text each; the one whose text is nearer in length to the answer's wins 1 from the other."""
    if len(turns) < len(roles):
        return NextTurn(roles[len(turns)], turns[-1].text if turns else "")
    first, second = (abs(len(turn.text) - len(str(row["answer"]))) for turn in turns)
    won = float((first < second) - (first > second))
    return NextTurn(None, rewards={roles[0]: won, roles[1]: -won})


def look_for_return(turns: Sequence[RoleTurn]) -> str:
    """Say whether the last text returns something, as a verifier that runs it would say more."""
    return "passed" if turns and "return" in turns[-1].text else "it returns nothing"
