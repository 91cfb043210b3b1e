"""Teachers of proofs by rewriting: the next tactic of a shortest proof, and plans of terms on the way."""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rewriting import (
    LARGEST,
    Goal,
    Term,
    apply_tactic,
    find_proof,
    list_steps,
    read_goal,
    write_term,
)
from learning.data.rows import Row, read_metadata
from schemas.errors import StepError

Rate = Annotated[float, Field(ge=0, le=1)]


def rewriter(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next tactic of a shortest proof, or sometimes another tactic that is possible.

    The prompt must show all turns so far. Raise StepError for a row without a goal, or one that cannot be proved.
    """
    goal = _replay(row)
    proof = find_proof(goal.left, goal.right, goal.rules, LARGEST)
    if not proof:
        raise StepError(f"teacher rewriter: row {row['id']}: no proof of `{goal}` was found, or it is proved already")
    if rng.random() >= error_rate:
        return proof[0]
    others = [tactic for tactic, _ in list_steps(goal.left, goal.rules, LARGEST) if tactic != proof[0]]
    return others[int(rng.integers(len(others)))] if others else proof[0]


def rewriting_planner(
    row: Row, rng: np.random.Generator, *, parts: Annotated[int, Field(ge=2)] = 2, error_rate: Rate = 0.0
) -> str:
    """Write terms on a shortest proof, one on a line, which divide it into `parts` of equal length.

    At the rate `error_rate` a term is another one, that leads nowhere in particular: the left side after two random
    tactics. A proof of fewer tactics than parts is divided into single ones; of one that was not found, the plan is
    empty.
    """
    goal = read_goal(row)
    proof = find_proof(goal.left, goal.right, goal.rules, LARGEST) or ()
    places = {len(proof) * part // parts for part in range(1, parts)} - {0, len(proof)}
    terms: list[Term] = []
    term = goal.left
    for place, tactic in enumerate(proof, 1):
        term = apply_tactic(term, goal.rules, tactic, LARGEST) or term
        if place in places:
            terms.append(_wander(goal, rng) if rng.random() < error_rate else term)
    return "\n".join(write_term(one) for one in terms)


def _wander(goal: Goal, rng: np.random.Generator) -> Term:
    """Return the left side after two random tactics."""
    term = goal.left
    for _ in range(2):
        steps = list_steps(term, goal.rules, LARGEST)
        term = steps[int(rng.integers(len(steps)))][1] if steps else term
    return term


def _replay(row: Row) -> Goal:
    """Return the goal that is left after the turns of the assistant in the prompt."""
    goal = read_goal(row)
    turns = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    number = read_metadata(row).get("turn", len(turns))
    if number != len(turns):
        raise StepError(
            f"teacher rewriter: row {row['id']}: its prompt shows {len(turns)} of {number} turns, but all are needed: "
            "leave out `context`"
        )
    for turn in turns:
        goal = goal._replace(left=apply_tactic(goal.left, goal.rules, turn, LARGEST) or goal.left)
    return goal
