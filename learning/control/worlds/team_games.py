"""Games of two agents who earn together, with known best returns: the climbing game and the two-step game.

They have the methods of PettingZoo's parallel environments, and do not need the package.
"""

from typing import Any

import gymnasium
import numpy as np

CLIMBING = ((11, -30, 0), (-30, 7, 6), (0, 0, 5))
"""Rewards of one agent's choice (rows) and the other's; the best is next to the worst (Claus and Boutilier 1998)."""
SAFE, TOGETHER = ((7, 7), (7, 7)), ((0, 1), (1, 8))
"""Rewards after the first choice of the two-step game (Rashid et al. 2018, table 1)."""
NAMES = ("first", "second")


class MatrixGame:
    """The first agent may choose between tables; then the choices of both give the reward of a table to both.

    Observations are the number of the state: 0 before a table is chosen, where there are several.
    """

    def __init__(self, *tables: tuple[tuple[int, ...], ...]) -> None:
        self.metadata = {"name": "matrix_game"}
        self.tables = np.array(tables, float)
        self.possible_agents = list(NAMES)
        self.states = len(tables) + (len(tables) > 1)

    def observation_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of states."""
        return gymnasium.spaces.Discrete(self.states)

    def action_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of choices."""
        return gymnasium.spaces.Discrete(self.tables.shape[1])

    def close(self) -> None:
        """Keep nothing open."""

    def observe(self) -> dict[str, int]:
        """Return the number of the state for both."""
        return dict.fromkeys(NAMES, self.state_number)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin."""
        self.agents, self.state_number = list(NAMES), 0
        return self.observe(), {name: {} for name in NAMES}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Choose a table, or earn its reward and end."""
        earned, ended = 0.0, True
        if self.states > len(self.tables) and self.state_number == 0:
            self.state_number, ended = 1 + actions["first"], False
        else:
            table = self.tables[self.state_number - (self.states > len(self.tables))]
            earned = float(table[actions["first"], actions["second"]])
        self.agents = [] if ended else self.agents
        rewards, ends = dict.fromkeys(NAMES, earned), dict.fromkeys(NAMES, ended)
        return self.observe(), rewards, ends, dict.fromkeys(NAMES, False), {name: {} for name in NAMES}


def climbing() -> MatrixGame:
    """Return the climbing game: the best pair earns 11, and each of its choices −30 with a wrong partner."""
    return MatrixGame(CLIMBING)


def two_step() -> MatrixGame:
    """Return the two-step game: 7 for sure, or 8 where both choose alike; sums of two values cannot show the 8."""
    return MatrixGame(SAFE, TOGETHER)
