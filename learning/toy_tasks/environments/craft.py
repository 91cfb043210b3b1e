"""Environment `craft`: things are crafted from others until the goal is in the bag (`learning.toy_tasks.crafts`)."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.toy_tasks.crafts import WAIT, Bag, Recipes, act, answer_action, read_craft, show_bag


class Environment:
    """Craft the goal of the problems `crafts`: the answer to an action is the bag after it, that to a thought is `ok`.

    The episode ends with reward 1 when the goal is in the bag. Nothing in it is random.
    """

    def __init__(self, *, penalty: Annotated[float, Field(ge=0)] = 0.0) -> None:
        """Set what an action costs that is not possible: its reward is −`penalty`, and nothing changes."""
        self.penalty = penalty

    def begin(self, row: Row, seed: int) -> "Crafting":
        """Return an episode. Raise StepError for a row without a goal, or with one that cannot be reached."""
        return Crafting(*read_craft(row), self.penalty)


class Crafting:
    """One episode: what is in the bag."""

    def __init__(self, recipes: Recipes, goal: str, penalty: float) -> None:
        self.recipes, self.goal, self.penalty = recipes, goal, penalty
        self.bag: Bag = ()

    @property
    def state_name(self) -> str:
        """Return the bag as the player sees it."""
        return show_bag(self.bag)

    def step(self, action: str) -> Outcome:
        """Carry out an action."""
        if action.strip().startswith(WAIT):
            return Outcome("ok")
        after = act(self.recipes, self.bag, action)
        shown = answer_action(after, self.bag)
        if after is None:
            return Outcome(shown, reward=-self.penalty if self.penalty else 0.0, ok=False)
        self.bag = after
        if dict(after).get(self.goal):
            return Outcome(done=True, reward=1.0)
        return Outcome(shown)

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"bag": [list(pair) for pair in self.bag]}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.bag = tuple((str(thing), int(count)) for thing, count in saved["bag"])
