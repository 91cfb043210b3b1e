"""The spaces of a world as numbers: what a network reads, and what it writes."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.base import JsonObject
from schemas.errors import StepError


@dataclass(frozen=True)
class Spaces:
    """Observations of `observations` numbers, and actions: `actions` choices, or a box with bounds."""

    observations: int
    actions: int
    """Number of choices, or of numbers of an action in a box."""
    low: tuple[float, ...] = ()
    """Lower bounds of a box; empty for choices."""
    high: tuple[float, ...] = ()
    """Upper bounds of a box; empty for choices."""
    shape: tuple[int, ...] = ()
    """Shape of an action in a box."""
    start: int = 0
    """Number of the first choice."""
    agents: int = 1
    """Number of agents who act at once; each has a choice, and an equal part of the observation."""

    @property
    def is_discrete(self) -> bool:
        """Return whether actions are choices."""
        return not self.low

    def flatten(self, world: Any, observation: Any) -> np.ndarray:
        """Return an observation as (O,) float32: boxes flat, choices as one-hot vectors."""
        from gymnasium.spaces.utils import flatten

        return np.asarray(flatten(world.observation_space, observation), dtype=np.float32)

    def to_world(self, action: np.ndarray) -> Any:
        """Return an action as the world takes it: the number of a choice, or an array within the bounds."""
        if self.agents > 1:
            return action
        if self.is_discrete:
            return int(action) + self.start
        return np.clip(action, self.low, self.high).reshape(self.shape).astype(np.float32)

    def dump(self) -> JsonObject:
        """Return a JSON object that `load` reads."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}

    @classmethod
    def load(cls, dumped: JsonObject) -> Self:
        """Return the spaces that `dump` described."""
        fields: JsonObject = {name: tuple(v) if isinstance(v, list) else v for name, v in dumped.items()}
        return cls(**fields)

    def require(self, other: "Spaces", what: str) -> None:
        """Raise StepError unless the other spaces, those of `what`, are the same."""
        if self != other:
            raise StepError(f"{what} has other spaces than the env: {other.describe()}; the env: {self.describe()}")

    def describe(self) -> str:
        """Return the spaces in words."""
        each = f" for each of {self.agents} agents" if self.agents > 1 else ""
        actions = (
            f"{self.actions} choices{each}" if self.is_discrete else f"{self.actions} numbers {self.low} to {self.high}"
        )
        return f"observations of {self.observations} numbers, actions: {actions}"


def read_spaces(world: Any) -> Spaces:
    """Return the spaces of a world. Raise StepError for actions that are neither choices nor numbers with bounds."""
    from gymnasium import spaces
    from gymnasium.spaces.utils import flatdim

    from learning.control.stepping.teams import Team  # imports Gymnasium

    action, observed = world.action_space, world.observation_space
    try:
        observations = int(flatdim(observed))
    except (NotImplementedError, ValueError) as error:
        raise StepError(
            f"env: observations of {observed} have no fixed size ({error}); wrap the environment"
        ) from error
    if isinstance(world, Team):
        return Spaces(observations, world.choices, agents=world.agents)
    if isinstance(action, spaces.Discrete):
        return Spaces(observations, int(action.n), start=int(action.start))
    if not isinstance(action, spaces.Box) or not np.issubdtype(np.dtype(action.dtype or np.float32), np.floating):
        raise StepError(f"env: actions of {action} are neither choices nor numbers in a box; wrap the environment")
    low, high = action.low.reshape(-1).tolist(), action.high.reshape(-1).tolist()
    if not np.isfinite([*low, *high]).all():
        raise StepError(f"env: actions of {action} have no bounds; wrap it in gymnasium.wrappers.RescaleAction")
    return Spaces(observations, len(low), tuple(low), tuple(high), tuple(action.shape))
