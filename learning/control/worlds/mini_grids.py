"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023): observations of objects, a direction and a mission, as numbers.

Shapes: W × H cells, 21 numbers of a cell: what is there, its colour and its state, one-hot each.
"""

import itertools
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from schemas.errors import StepError

OBJECTS, COLOURS, STATES, DIRECTIONS = 11, 6, 4, 4
"""Sizes of MiniGrid's codes; the state of a door has three values, the direction of an agent that is seen has four."""
MOST_MISSIONS = 10_000
INSTALL = "pip install 'posttrain[control]'"


class Numbered(gymnasium.ObservationWrapper[np.ndarray, Any, Any]):
    """A world of MiniGrid that shows numbers from 0 to 1: cells, the agent's direction, and the words of the mission.

    A mission is a sentence with places for words, as "go to the {colour} door": each place is one-hot.
    """

    def __init__(self, world: Any, *, shows_mission: bool) -> None:
        """Take a world. Raise StepError if its missions are no sentence with places for words."""
        super().__init__(world)
        shown: Any = world.observation_space
        self.words = list_missions(shown["mission"], world.spec.id) if shows_mission else {"": np.zeros(0, np.float32)}
        self.shows_mission, self.cells = shows_mission, shown["image"].shape[:2]
        size = (
            int(np.prod(self.cells)) * (OBJECTS + COLOURS + STATES) + DIRECTIONS + len(next(iter(self.words.values())))
        )
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """Return what is seen as numbers: the cells column by column, the direction, the mission. Raise StepError."""
        cells = [
            np.eye(n, dtype=np.float32)[observation["image"][..., k]] for k, n in enumerate((OBJECTS, COLOURS, STATES))
        ]
        direction = np.eye(DIRECTIONS, dtype=np.float32)[observation["direction"]]
        mission = observation["mission"] if self.shows_mission else ""
        if mission not in self.words:
            raise StepError(
                f"env minigrid: the mission {mission!r} is none of the world's; `mission: none` leaves it out"
            )
        return np.concatenate([np.concatenate(cells, -1).reshape(-1), direction, self.words[mission]])


def list_missions(space: Any, name: str) -> dict[str, np.ndarray]:
    """Return every mission with its words (M,), one-hot for each place. Raise StepError if they cannot be listed."""
    places = getattr(space, "ordered_placeholders", ()) or ()
    count = int(np.prod([len(words) for words in places], dtype=np.int64))
    if type(space).__name__ != "MissionSpace" or count > MOST_MISSIONS:
        raise StepError(
            f"env minigrid: the missions of {name} are no sentence with places for words; "
            "`mission: none` leaves them out of observations"
        )
    found: dict[str, np.ndarray] = {}
    for chosen in itertools.product(*(range(len(words)) for words in places)):
        text = space.mission_func(*(words[n] for words, n in zip(places, chosen, strict=True)))
        parts = [np.eye(len(words), dtype=np.float32)[n] for words, n in zip(places, chosen, strict=True)]
        if text in found:
            raise StepError(f"env minigrid: two missions of {name} read {text!r}; `mission: none` leaves them out")
        found[text] = np.concatenate([np.zeros(0, np.float32), *parts])
    return found


def minigrid(
    *,
    id: Annotated[str, Field(min_length=1)],
    view: Literal["partial", "full"] = "partial",
    mission: Literal["words", "none"] = "words",
    kwargs: dict[str, Any] = {},  # noqa: B006 — a recipe needs the default to be readable
) -> gymnasium.Env:
    """Return a world of MiniGrid or BabyAI by its id, as `MiniGrid-Empty-5x5-v0`, with numbers as observations.

    `partial` shows the cells in front of the agent, `full` all cells and the agent among them. Raise StepError if the
    package or the world is missing.
    """
    try:
        from minigrid.minigrid_env import MiniGridEnv  # an optional dependency
        from minigrid.wrappers import FullyObsWrapper
    except ImportError as error:
        raise StepError(f"env minigrid: {error}: {INSTALL}") from error
    try:
        world = gymnasium.make(id, **kwargs)
        world.reset(seed=0)  # a world with sizes that do not fit fails here
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, AssertionError) as error:
        raise StepError(f"env minigrid: {id} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(world.unwrapped, MiniGridEnv):
        raise StepError(f"env minigrid: {id} is none of MiniGrid's worlds")
    if view == "full":
        world = FullyObsWrapper(world)
    return Numbered(world, shows_mission=mission == "words")
