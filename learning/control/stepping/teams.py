"""Teams: worlds of PettingZoo in which several agents act at once, as one world with an action for each of them.

Shapes: G agents, O numbers of one agent's observation.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces.utils import flatdim, flatten

from schemas.errors import StepError

Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""


class Team(gymnasium.Env):
    """A parallel environment of PettingZoo: observations of all agents one after the other, and a choice of each.

    The reward is the mean of the agents' rewards. An agent that has finished observes zeros, and its choice is ignored;
    the episode ends with the last agent, and is cut off if one of the last was.
    """

    def __init__(self, world: Any) -> None:
        """Take a parallel environment. Raise StepError unless its agents see and choose alike."""
        self.world, self.names = world, list(world.possible_agents)
        actions = [world.action_space(name) for name in self.names]
        shown = [world.observation_space(name) for name in self.names]
        try:
            sizes = {int(flatdim(space)) for space in shown}
        except (NotImplementedError, ValueError) as error:
            raise StepError(f"env: an agent's observations have no fixed size ({error}); wrap the world") from error
        alike = all(isinstance(space, gymnasium.spaces.Discrete) and space.n == actions[0].n for space in actions)
        if len(sizes) != 1 or not alike or any(space.start for space in actions):
            raise StepError(
                "env: agents of a team need as many numbers to observe and as many choices, from 0 on; they have "
                f"{shown} and {actions}: wrap the world"
            )
        self.size, self.shown = sizes.pop(), dict(zip(self.names, shown, strict=True))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(self.names) * self.size,), np.float32)
        self.choices = int(actions[0].n)
        self.action_space = gymnasium.spaces.MultiDiscrete([self.choices] * len(self.names))

    @property
    def agents(self) -> int:
        """Return the number of agents."""
        return len(self.names)

    def join(self, observations: dict[str, Any]) -> np.ndarray:
        """Return what all agents see (G · O,)."""
        parts = [
            np.asarray(flatten(self.shown[name], observations[name]), np.float32)
            if name in observations
            else np.zeros(self.size, np.float32)
            for name in self.names
        ]
        return np.concatenate(parts)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin an episode."""
        super().reset(seed=seed)
        observations, _ = self.world.reset(seed=seed, options=options)
        return self.join(observations), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Let every agent act that has not finished."""
        acting = set(self.world.agents)
        taken = {name: int(one) for name, one in zip(self.names, action, strict=True) if name in acting}
        observations, rewards, terminated, truncated, _ = self.world.step(taken)
        earned = sum(float(reward) for reward in rewards.values()) / self.agents
        left = [name for name in acting if not (terminated[name] or truncated[name])]
        cut = not left and any(truncated[name] and not terminated[name] for name in acting)
        return self.join(observations), earned, not left and not cut, cut, {}

    def close(self) -> None:
        """Close the world."""
        self.world.close()


def join_agents(world: Any) -> Any:
    """Return a world as one of Gymnasium: a parallel environment of PettingZoo becomes a team, others stay."""
    return Team(world) if hasattr(world, "possible_agents") else world
