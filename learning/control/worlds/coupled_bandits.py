"""Restless arms that are coupled: what is done to one works best if something is done to its partner, too.

It has the methods of PettingZoo's parallel environments, an agent for each arm, and does not need the package.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

Steps = Annotated[int, Field(ge=1)]
ALONE, TOGETHER, LEFT = (0.35, 0.75), (0.95, 0.98), (0.1, 0.6)
"""Chances of being good after a step, of a bad and of a good arm: treated alone, with its partner, or left."""
COSTS = (2.0, 2.0, 1.0, 1.0, 2.0, 1.0)


class CoupledBandit:
    """Arms that are good or bad; each good one earns 1 a step, shared out as the mean over arms.

    Arms 0 and 1, 2 and 3, … are partners. At most `most` arms are treated in a step, of at most `capacity` cost; a
    combination beyond it is not carried out.
    """

    def __init__(self, costs: Sequence[float], most: int, capacity: float, limit: int) -> None:
        self.metadata = {"name": "coupled_bandit"}
        self.costs, self.most, self.capacity, self.limit = np.array(costs), most, capacity, limit
        self.possible_agents = [f"arm {number}" for number in range(len(costs))]

    def observation_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of an arm's state: 0 bad, 1 good."""
        return gymnasium.spaces.MultiBinary(1)

    def action_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the choice between leaving and treating."""
        return gymnasium.spaces.Discrete(2)

    def close(self) -> None:
        """Keep nothing open."""

    def observe(self) -> dict[str, np.ndarray]:
        """Return the states."""
        return {name: np.array([state]) for name, state in zip(self.possible_agents, self.is_good, strict=True)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin with states that are drawn evenly."""
        self.rng, self.steps, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        self.is_good = self.rng.integers(2, size=len(self.costs))
        return self.observe(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Treat arms, and let all of them change."""
        treated = np.array([actions[name] for name in self.possible_agents])
        if treated.sum() > self.most or treated @ self.costs > self.capacity:
            treated = np.zeros_like(treated)
        partner = np.arange(len(treated)) ^ 1
        together = treated * treated[np.minimum(partner, len(treated) - 1)] * (partner < len(treated))
        chances = np.array([LEFT, ALONE, TOGETHER])[treated + together, self.is_good]
        self.is_good = (self.rng.random(len(treated)) < chances).astype(int)
        self.steps += 1
        names, cut = self.possible_agents, self.steps >= self.limit
        self.agents = [] if cut else self.agents
        rewards = {name: float(good) for name, good in zip(names, self.is_good, strict=True)}
        return self.observe(), rewards, dict.fromkeys(names, False), dict.fromkeys(names, cut), {n: {} for n in names}


def coupled_bandit(
    *,
    costs: Annotated[Sequence[float], Field(min_length=2)] = COSTS,
    most: Annotated[int, Field(ge=1)] = 2,
    capacity: Annotated[float, Field(gt=0)] = 3.0,
    limit: Steps = 10,
) -> CoupledBandit:
    """Return restless arms of which two partners are worth treating together, as many and as costly as limits allow."""
    return CoupledBandit(costs, most, capacity, limit)
