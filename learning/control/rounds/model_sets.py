"""Sets of worlds that may be the real one: which of them is the worst for a policy, and what is good in all.

A world is chosen by a stage of kind python, in `choice.json`, and named by the function `one_of`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.policies.playing import play
from learning.control.policies.policy import load_control_policy, load_networks
from learning.control.tables.counts import read_table, write_table
from learning.control.worlds.grids import Info
from learning.lookup import Inner
from schemas.control import WorldUse
from schemas.errors import StepError
from schemas.references import DirectoryRef

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
"""Option of a function: a world, which it gets bound."""
FILE = "choice.json"


def read_choices(folder: Path) -> list[int]:
    """Return the numbers of the worlds that were chosen so far, the newest last. Raise StepError if there are none."""
    try:
        return [int(number) for number in json.loads((folder / FILE).read_text())["chosen"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"choice: {folder.name} has no {FILE}: name the output of a stage that chooses") from error


def write_choices(context: Any, chosen: Sequence[int]) -> None:
    """Write the numbers of the chosen worlds, the newest last."""
    (context.output("result") / FILE).write_text(json.dumps({"chosen": list(chosen)}) + "\n")


def one_of(*, worlds: list[WorldFunction], choice: DirectoryRef) -> Any:
    """Return the world, of several, that another stage chose last."""
    number = read_choices(Path(choice))[-1]
    if number >= len(worlds):
        raise StepError(f"env one_of: world {number} was chosen, and there are {len(worlds)}")
    return worlds[number]()


def nth_of(*, worlds: list[WorldFunction], number: Annotated[int, Field(ge=1)]) -> Any:
    """Return one of several worlds, counted from 1, such as that of an iteration: `number: "${repeat.iteration}"`."""
    if number > len(worlds):
        raise StepError(f"env nth_of: there is no world {number}, the last is {len(worlds)}")
    return worlds[number - 1]()


class AnyOf(gymnasium.Env):
    """One of several worlds with the same spaces, drawn evenly for every episode."""

    def __init__(self, worlds: Sequence[Any]) -> None:
        """Take worlds. Raise StepError unless they show and take the same."""
        self.worlds, self.world = list(worlds), worlds[0]
        self.observation_space, self.action_space = self.world.observation_space, self.world.action_space
        for number, other in enumerate(self.worlds):
            if (other.observation_space, other.action_space) != (self.observation_space, self.action_space):
                raise StepError(f"env any_of: worlds.{number} has other spaces than the first")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an episode in a world that the seed chooses."""
        super().reset(seed=seed)
        self.world = self.worlds[self.choose()]
        return self.world.reset(seed=seed, options=options)

    def choose(self) -> int:
        """Return the number of the next episode's world."""
        return int(self.np_random.integers(len(self.worlds)))

    def step(self, action: Any) -> Any:
        """Act in the episode's world."""
        return self.world.step(action)

    def close(self) -> None:
        """Close all worlds."""
        for world in self.worlds:
            world.close()


def any_of(*, worlds: list[WorldFunction]) -> AnyOf:
    """Return a world that is another one of several in every episode: domain randomisation (Tobin et al. 2017)."""
    return AnyOf([world() for world in worlds])


def choose_world(context: Any, *, number: Annotated[int, Field(ge=0)] = 0) -> dict[str, float]:
    """Choose a world by its number, such as the nominal one."""
    write_choices(context, [number])
    return {"chosen": number}


def choose_worst_world(
    context: Any, *, worlds: list[WorldFunction], episodes: Annotated[int, Field(ge=1)] = 20
) -> dict[str, float]:
    """Choose the world in which the input `policy` has the lowest mean return, from the same starts in each.

    The input `choice` has the choices before; `is_new` is 0 where the worst is one of them. Of equal ones the first.
    """
    before, actor = read_choices(context.input("choice")), load_control_policy(context.input("policy")).actor
    returns = [float(play(make, actor, range(episodes), context.seed, "worst").mean()) for make in worlds]
    worst = int(np.argmin(returns))
    write_choices(context, [*before, worst])
    return {"chosen": worst, "is_new": float(worst not in before), "worst_return": returns[worst]}


def take_lowest_values(context: Any) -> dict[str, float]:
    """Write the policy argmax_a min(Q1, Q2) of the inputs `first` and `second`, both tables of values of choices.

    Its table is the lower of both, so that a third can be added (Zouitine et al. 2024: candidates are
    argmax_a min_i Q_i). Raise StepError for others than tables of the same world.
    """
    policy, other = (load_control_policy(context.input(name)) for name in ("first", "second"))
    policy.spaces.require(other.spaces, "second")
    for name, given in (("first", policy), ("second", other)):
        if given.actor_form != "make_choice_values" or given.settings.hidden_sizes:
            raise StepError(
                f"{name}: the lowest values are those of tables: train it with `hidden_sizes: []` by values"
            )
    value_SA, other_SA = read_table(policy.actor), read_table(other.actor)
    write_table(policy.actor, np.minimum(value_SA, other_SA))
    policy.save(context.output("model"), load_networks(context.input("first")))
    changed_S = np.minimum(value_SA, other_SA).argmax(1) != value_SA.argmax(1)
    return {"changed": float(changed_S.sum()), "lowered": float((other_SA < value_SA).mean())}
