"""A small grid in which two agents take gems that are worth different things to them: a game that is no common cause.

It has the methods of PettingZoo's parallel environments, and does not need the package. Shapes: N worlds, O numbers of
what both agents see.
"""

from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

Steps = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=3)]
NAMES = ("first", "second")
MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
"""Stay, up, down, left, right."""
OWN, OTHERS, COLLISION = 1.0, 0.3, -0.1
"""What a gem is worth to its owner and to the other agent, and what it costs both to be in one cell."""


class GemGrid:
    """Two agents and a gem of each on a grid; who steps on a gem takes it, even the other's.

    Cells of agents and gems are drawn. Each agent sees its own cell, the other's, and the cells of its own gem and the
    other's while they lie there. Where both are in one cell, it costs both. The episode ends with the last gem, or is
    cut off.
    """

    def __init__(self, size: int, limit: int) -> None:
        self.metadata = {"name": "gem_grid"}
        self.size, self.limit, self.cells = size, limit, size * size
        self.possible_agents = list(NAMES)

    def observation_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of four cells, of which those of gems may be nowhere."""
        return gymnasium.spaces.Box(0.0, 1.0, (4 * self.cells,), np.float32)

    def action_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of moves."""
        return gymnasium.spaces.Discrete(len(MOVES))

    def close(self) -> None:
        """Keep nothing open."""

    def observe(self) -> dict[str, np.ndarray]:
        """Return what each agent sees."""
        shown = {}
        for one, name in enumerate(NAMES):
            seen = np.zeros((4, self.cells), np.float32)
            places = (self.place[one], self.place[1 - one], self.gem[one], self.gem[1 - one])
            for row, cell in enumerate(places):
                if cell >= 0:
                    seen[row, cell] = 1.0
            shown[name] = seen.reshape(-1)
        return shown

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Draw four different cells."""
        cells = np.random.default_rng(seed).permutation(self.cells)[:4].tolist()
        self.agents, self.steps = list(NAMES), 0
        self.place, self.gem = cells[:2], cells[2:]
        return self.observe(), {name: {} for name in NAMES}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Move both at once, and take the gems that they reach."""
        self.place = [self._find_cell(self.place[n], actions[name]) for n, name in enumerate(NAMES)]
        earned = [COLLISION if self.place[0] == self.place[1] else 0.0] * 2
        for one in range(2):
            for owner in range(2):
                if self.gem[owner] == self.place[one]:
                    earned[one] += OWN if owner == one else OTHERS
                    self.gem[owner] = -1
        self.steps += 1
        ended = self.gem == [-1, -1]
        cut = not ended and self.steps >= self.limit
        self.agents = [] if ended or cut else self.agents
        rewards = dict(zip(NAMES, earned, strict=True))
        return self.observe(), rewards, dict.fromkeys(NAMES, ended), dict.fromkeys(NAMES, cut), {n: {} for n in NAMES}

    def _find_cell(self, cell: int, action: int) -> int:
        """Return the cell that a move leads to; at the border it stays."""
        row, column = np.clip(np.array(divmod(cell, self.size)) + MOVES[action], 0, self.size - 1)
        return int(row) * self.size + int(column)


def gem_grid(*, size: Size = 4, limit: Steps = 10) -> GemGrid:
    """Return a grid with two agents and a gem of each: 1 for the own gem, 0.3 for the other's, −0.1 in one cell."""
    return GemGrid(size, limit)


def fetch_own_gem(observation_NO: np.ndarray, *, size: Size = 4) -> np.ndarray:
    """Choose for both agents (N, 2) in `gem_grid` of this size: each goes to its own gem, by rows and then columns.

    Where both would come into one cell, the second agent waits.
    """
    return np.array([_fetch(seen.reshape(2, 4, size * size), size) for seen in observation_NO])


def _fetch(seen_G4C: np.ndarray, size: int) -> list[int]:
    """Return the moves of both agents."""
    chosen, reached = [], []
    for one in range(2):
        place, gem = (np.array(divmod(int(row.argmax()), size)) if row.any() else None for row in seen_G4C[one, [0, 2]])
        assert place is not None
        away = np.zeros(2, int) if gem is None else np.sign(gem - place)
        move = np.array([away[0], 0]) if away[0] else np.array([0, away[1]])
        chosen.append(int((move == MOVES).all(1).argmax()))
        reached.append(place + move)
    meet = (reached[0] == reached[1]).all()
    return [chosen[0], 0] if meet and chosen[0] else chosen
