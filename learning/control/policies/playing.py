"""Acting with trained policies in worlds, also with those that remember the episode. Shapes: N worlds, O numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import numpy as np

from learning.control.policies.policy import act
from learning.control.stepping.episode_tasks import EpisodeTasks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Make, Steps, Worlds
from learning.lookup import Bound


class Player(Protocol):
    """Acts in N worlds."""

    def act(self, observation_NO: np.ndarray, *, explore: bool) -> np.ndarray:
        """Return an action for every world."""
        ...

    def see(self, steps: Steps) -> None:
        """Take note of what happened."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """An actor whose actions depend on more than the present observation."""

    def begin(self, count: int) -> Player:
        """Return what acts in `count` worlds whose episodes begin."""
        ...


@dataclass(frozen=True)
class Memoryless:
    """Acts by the present observation alone."""

    actor: Any

    def act(self, observation_NO: np.ndarray, *, explore: bool) -> np.ndarray:
        """Return an action for every world."""
        return act(self.actor, observation_NO, explore=explore)

    def see(self, steps: Steps) -> None:
        """Forget what happened."""


@dataclass(frozen=True)
class FunctionActor:
    """A function that acts without a network, in the place of a trained actor."""

    function: Bound
    spaces: Spaces
    seed: int

    def begin(self, count: int) -> "FunctionPlayer":
        """Return what acts in `count` worlds; every episode has the same stream of random numbers."""
        return FunctionPlayer(self, np.random.default_rng([self.seed, crc32(self.function.slot.encode())]))


@dataclass(frozen=True)
class FunctionPlayer:
    """Acts by a function of the present observation."""

    actor: FunctionActor
    rng: np.random.Generator

    def act(self, observation_NO: np.ndarray, *, explore: bool) -> np.ndarray:
        """Return an action for every world; a function explores or not by itself."""
        supplies = {"observation_NO": observation_NO, "spaces": self.actor.spaces, "rng": self.rng}
        return self.actor.function.ask(0, supplies)

    def see(self, steps: Steps) -> None:
        """Forget what happened."""


def begin(actor: Any, count: int) -> Player:
    """Return what acts with an actor in `count` worlds whose episodes begin."""
    return actor.begin(count) if isinstance(actor, Remembering) else Memoryless(actor)


def play(
    make: Make,
    actor: Any,
    starts: Sequence[int],
    seed: int,
    purpose: str,
    *,
    explore: bool = False,
    tasks: EpisodeTasks | None = None,
) -> np.ndarray:
    """Return the return of one episode from each start: by the likeliest or best actions, or by drawn ones.

    `tasks` chooses the tasks of the episodes.
    """
    returns = []
    for start in starts:
        worlds, player = Worlds(make, 1, seed, f"{purpose}.{start}", tasks), begin(actor, 1)
        while True:
            steps = worlds.step(player.act(worlds.observation, explore=explore))
            player.see(steps)
            if steps.ended:
                returns.append(steps.ended[0][1])
                break
        worlds.close()
    return np.array(returns)
