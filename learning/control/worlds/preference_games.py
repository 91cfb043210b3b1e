"""Games of one choice against an opponent's: what a policy is worth that was trained by preferences."""

from collections.abc import Sequence
from typing import Annotated

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.worlds.grids import Info
from schemas.errors import StepError


class PreferenceGame(gymnasium.Env):
    """One choice, which earns the probability that it is preferred to the opponent's."""

    def __init__(self, table: np.ndarray, opponent: int) -> None:
        self.table, self.opponent = table, opponent
        self.observation_space = gymnasium.spaces.Discrete(1)
        self.action_space = gymnasium.spaces.Discrete(len(table))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin."""
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Choose, and end."""
        return 0, float(self.table[int(action), self.opponent]), True, False, {}


def preference_game(*, table: Sequence[Sequence[float]], opponent: Annotated[int, Field(ge=0)] = 0) -> PreferenceGame:
    """Return a game of one choice: `table` has P(row is preferred to column), the opponent always makes one choice."""
    wins = np.array(table, float)
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1] or not np.allclose(wins + wins.T, 1):
        raise StepError("preference_game: the table must be square, and P(a to b) + P(b to a) = 1")
    if opponent >= len(wins):
        raise StepError(f"preference_game: there is no choice {opponent}, the last is {len(wins) - 1}")
    return PreferenceGame(wins, opponent)
