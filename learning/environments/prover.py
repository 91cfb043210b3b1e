"""Environment `prover`: an equation is proved by rewriting its left side, one tactic a turn.

Terms, rules and tactics are those of `learning.data.rewriting`.
"""

import json
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rewriting import LARGEST, Goal, Term, apply_tactic, count_leaves, parse_term, read_goal, write_term
from learning.data.rows import Row, read_metadata
from learning.environments.protocol import Outcome

REFUSED = "?"
"""First line of the answer to a turn that is no tactic here."""


class Environment:
    """Prove the goal of a row of `rewriting_goals`, or of your own: the answer to a tactic is the goal that is left.

    The episode ends with reward 1 when both sides are the same. Every step is checked exactly; nothing is random.
    """

    def __init__(
        self,
        *,
        mistakes: Literal["stay", "end"] = "stay",
        penalty: Annotated[float, Field(ge=0)] = 0.0,
        largest: Annotated[int, Field(ge=1, le=100)] = LARGEST,
    ) -> None:
        """Set what happens with a turn that is no tactic here.

        It costs `penalty`; the goal stays as it is, or with `mistakes: end` the episode ends, as a proof assistant
        closes a branch. So does a tactic that would give more than `largest` letters and digits.
        """
        self.mistakes, self.penalty, self.largest = mistakes, penalty, largest

    def begin(self, row: Row, seed: int) -> "Proof":
        """Return an episode. Raise StepError for a row without a goal."""
        return Proof(read_goal(row), self)

    def divide(self, row: Row, plan: str) -> list[Row]:
        """Return the goals of a plan that names a term on each line: the left side to the first, that to the next, …

        Proofs of all of them, one after the other, prove the goal of the row. Return nothing for a plan without terms,
        or with one that is none or has too many letters and digits. Terms that repeat the one before are left out.
        """
        goal = read_goal(row)
        try:
            between = [parse_term(line) for line in plan.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return []
        if not between or max(map(count_leaves, between)) > self.largest:
            return []
        ends: list[Term] = [goal.left, *between, goal.right]
        steps = [(left, right) for left, right in pairwise(ends) if left != right]
        return [self._make_part(row, goal, *sides, place) for place, sides in enumerate(steps)]

    def _make_part(self, row: Row, goal: Goal, left: Term, right: Term, place: int) -> Row:
        """Return a row with another goal, which its prompt shows in the place of the old one."""
        part = str(goal._replace(left=left, right=right))
        *before, last = row["prompt"]
        shown = {**last, "content": str(last["content"]).replace(str(goal), part)}
        metadata = {**read_metadata(row), "goal": part}
        return row | {"id": f"{row['id']}/{place}", "prompt": [*before, shown], "metadata": json.dumps(metadata)}


class Proof:
    """One proof: what is left to be shown."""

    def __init__(self, goal: Goal, world: Environment) -> None:
        self.goal, self.world = goal, world

    @property
    def state_name(self) -> str:
        """Return the goal that is left."""
        return str(self.goal)

    def step(self, action: str) -> Outcome:
        """Use a tactic."""
        world = self.world
        changed = apply_tactic(self.goal.left, self.goal.rules, action, world.largest)
        if changed is None:
            reward = -world.penalty if world.penalty else 0.0
            return Outcome(f"{REFUSED}\n{self.goal}", done=world.mistakes == "end", reward=reward, ok=False)
        self.goal = self.goal._replace(left=changed)
        if changed == self.goal.right:
            return Outcome(done=True, reward=1.0)
        return Outcome(str(self.goal))

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"left": write_term(self.goal.left)}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.goal = self.goal._replace(left=parse_term(saved["left"]))
