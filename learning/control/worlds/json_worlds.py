"""Worlds whose observations are JSON: any world as one, and a street with shops that are described so."""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.networks.json_trees import describe, write_bytes
from learning.control.worlds.grids import Info
from learning.lookup import Inner
from schemas.control import WorldUse
from schemas.errors import StepError

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
"""Option of a function: a world, which it gets bound."""


class AsJson(gymnasium.Env):
    """Shows a world's observations as JSON in UTF-8, `size` bytes with zeros behind the end.

    Dictionaries become objects; tuples, sequences and boxes arrays; a text that is the whole observation is JSON
    already.
    """

    def __init__(self, world: Any, size: int) -> None:
        self.world, self.size, self.action_space = world, size, world.action_space
        self.observation_space = gymnasium.spaces.Box(0, 255, (size,), np.uint8)

    def show(self, observation: Any) -> np.ndarray:
        """Return an observation as bytes. Raise StepError for a text that is no JSON, and for one that is too long."""
        value = describe(self.world.observation_space, observation)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise StepError(f"env as_json: the observation is a text that is no JSON: {value[:80]!r}") from error
        return write_bytes(value, self.size)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin an episode."""
        super().reset(seed=seed)
        observation, info = self.world.reset(seed=seed, options=options)
        return self.show(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Act."""
        observation, *rest = self.world.step(action)
        return self.show(observation), *rest

    def close(self) -> None:
        """Close the world."""
        self.world.close()


def as_json(*, world: WorldFunction, size: Annotated[int, Field(ge=2)] = 256) -> AsJson:
    """Return a world that shows its observations as JSON, of at most `size` bytes, for `json_ppo`."""
    return AsJson(world(), size)


class ShopStreet(gymnasium.Env):
    """A street with two shops, one of which sells tea: reaching it pays 1, reaching the other 0.

    Either ends the episode. The shops stand on both sides of the middle, where the walk begins, in any order in the
    text. How deep a shop's place stands in it, and what is said beside, differs between episodes. `features` shows the
    same in seven numbers.
    """

    def __init__(self, shows: str, limit: int) -> None:
        self.shows, self.limit = shows, limit
        text = gymnasium.spaces.Text(400, min_length=2, charset="".join(map(chr, range(32, 127))))
        numbers = gymnasium.spaces.Box(-4, 4, (7,), np.float32)
        self.observation_space = numbers if shows == "features" else text
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin in the middle."""
        super().reset(seed=seed)
        rng = self.np_random
        self.at, self.steps = 0, 0
        places = [-int(rng.integers(1, 4)), int(rng.integers(1, 4))]
        sold = ["tea", "nuts"] if rng.random() < 0.5 else ["nuts", "tea"]
        order = rng.permutation(2)
        self.shops = [(sold[n], places[n]) for n in order]
        self.is_deep = rng.random(3) < 0.5
        return self.observe(), {}

    def observe(self) -> Any:
        """Return what is known: a text of JSON, or place, goods (one-hot) and where they are."""
        if self.shows == "features":
            parts = [(float(sold == "tea"), float(sold == "nuts"), float(place)) for sold, place in self.shops]
            return np.array([self.at, *parts[0], *parts[1]], np.float32)
        shops: list[Any] = [
            {"sells": sold, "stands": {"at": place}} if deep else {"sells": sold, "at": place, "open": True}
            for (sold, place), deep in zip(self.shops, self.is_deep, strict=False)
        ]
        said = {"you": {"at": self.at}, **({"street": {"shops": shops}} if self.is_deep[2] else {"shops": shops})}
        return json.dumps(said)

    def step(self, action: int) -> tuple[Any, float, bool, bool, Info]:
        """Walk to the left (0) or to the right (1)."""
        self.at, self.steps = self.at + (1 if action else -1), self.steps + 1
        reached = [sold for sold, place in self.shops if place == self.at]
        return self.observe(), float("tea" in reached), bool(reached), not reached and self.steps >= self.limit, {}


def shop_street(*, shows: Literal["json", "features"] = "json", limit: Annotated[int, Field(ge=1)] = 12) -> ShopStreet:
    """Return a street in which one of two shops sells tea, described as JSON or as numbers."""
    return ShopStreet(shows, limit)
