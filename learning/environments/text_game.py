"""Environment `text_game`: rooms, items, containers and keys, played by text (`learning.text_game.world`)."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.text_game.rows import read_game, restore_state, save_state
from learning.text_game.world import State, World, act, describe, is_solved

REFUSED = "you cannot do that"
"""First line of the answer to a turn that is not possible."""


class Environment:
    """Play a text game of the problems `text_games`: the answer to a turn is what the player sees then.

    The game ends with reward 1 when its goal is reached. Nothing in it is random.
    """

    def __init__(self, *, penalty: Annotated[float, Field(ge=0)] = 0.0) -> None:
        """Set what a turn that is not possible costs: its reward is −`penalty`, and nothing else changes."""
        self.penalty = penalty

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode. Raise StepError for a row without a game, or with one that cannot be solved."""
        return Play(*read_game(row), self.penalty)


class Play:
    """One game."""

    def __init__(self, world: World, start: State, penalty: float) -> None:
        self.world, self.now, self.penalty = world, start, penalty

    @property
    def state_name(self) -> str:
        """Return the state by which turns are compared with each other: what the player sees."""
        return describe(self.world, self.now)

    def step(self, action: str) -> Outcome:
        """Carry out an action."""
        after = act(self.world, self.now, action)
        if after is None:
            return Outcome(f"{REFUSED}\n{self.state_name}", reward=-self.penalty if self.penalty else 0.0, ok=False)
        self.now = after
        if is_solved(self.world, after):
            return Outcome(done=True, reward=1.0)
        return Outcome(self.state_name)

    def save(self) -> Row:
        """Return the state of the game as JSON."""
        return save_state(self.now)

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.now = restore_state(saved)
