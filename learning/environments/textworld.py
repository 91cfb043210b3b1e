"""Environment `textworld`: quests of TextWorld, played by its logic (`learning.text_game.textworld`)."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.text_game.textworld import World, read_game
from schemas.errors import StepError

REFUSED = "you cannot do that"
"""First line of the answer to a turn that the game does not admit."""


class Environment:
    """Play a game of TextWorld, such as those of the problems `textworld_games`: the answer is what is seen then.

    The game ends with reward 1 when its quest is done, and with 0 when it is lost. With `lists_commands` every answer
    ends with the commands that are possible. Needs `pip install 'posttrain[textworld]'`. (Côté et al. 2018.)
    """

    def __init__(self, *, lists_commands: bool = False, penalty: Annotated[float, Field(ge=0)] = 0.0) -> None:
        """Set what is shown, and that a command which is not possible has the reward −`penalty`."""
        self.lists_commands, self.penalty = lists_commands, penalty

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode. Raise StepError for a row without a game."""
        return Play(read_game(row), self)


class Play:
    """One game in progress. Nothing in it is random."""

    def __init__(self, world: World, rules: Environment) -> None:
        self.world, self.rules = world, rules
        self.progress = world.begin()
        self.carried_out: list[str] = []

    @property
    def state_name(self) -> str:
        """Return the state by which turns are compared with each other: what the player sees."""
        return self.world.describe(self.progress)

    def step(self, action: str) -> Outcome:
        """Carry out a command that the game admits; another changes nothing."""
        name = action.strip()
        if not self.world.carry_out(name, self.progress):
            earned = -self.rules.penalty if self.rules.penalty else 0.0
            return Outcome(f"{REFUSED}\n{self._show()}", reward=earned, ok=False)
        self.carried_out.append(name)
        if self.progress.done:
            return Outcome(done=True, reward=float(self.progress.completed))
        return Outcome(self._show())

    def _show(self) -> str:
        return self.world.show(self.progress, lists_commands=self.rules.lists_commands)

    def save(self) -> Row:
        """Return the commands that led here, which lead here again."""
        return {"commands": list(self.carried_out)}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned. Raise StepError for commands of another game."""
        self.progress, self.carried_out = self.world.begin(), []
        for name in saved["commands"]:
            if not self.world.carry_out(name, self.progress):
                raise StepError(
                    f"env textworld: {name!r} is not possible where the saved episode says so: another game"
                )
            self.carried_out.append(name)
