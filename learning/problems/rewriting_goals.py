"""Equations to be proved by rewriting: both sides are drawn, and the shortest proof has the requested length."""

import hashlib
import json
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rewriting import LARGEST, Goal, Rules, Term, list_steps, read_rules, write_goal
from learning.data.rows import Row
from schemas.errors import StepError

RULES = {
    "zero": "x+0 = x",
    "one": "x*1 = x",
    "none": "x*0 = 0",
    "swap": "x+y = y+x",
    "turn": "x*y = y*x",
    "left": "x+(y+z) = x+y+z",
    "right": "x+y+z = x+(y+z)",
    "spread": "x*(y+z) = x*y+x*z",
}
"""Rules of sums and products; each goal brings its own, of which these are the default."""
MAX_DRAWS = 400
"""Terms drawn per problem after which there are too few."""


def rewriting_goals(
    *,
    size: Annotated[int, Field(ge=1)],
    split: Literal["train", "test"],
    seed: int = 0,
    steps: Annotated[list[Annotated[int, Field(ge=1, le=8)]], Field(min_length=1)] = [2, 3, 4, 5, 6],  # noqa: B006
    leaves: Annotated[list[Annotated[int, Field(ge=1, le=8)]], Field(min_length=1)] = [4, 5, 6],  # noqa: B006
    letters: Annotated[int, Field(ge=1, le=20)] = 3,
    rules: dict[str, str] = RULES,
    instruction: str = "",
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` different equations for the train or test split, cycling through `steps`.

    `steps` is the difficulty: the number of tactics of a shortest proof, also in the row's family (`rewriting4`). The
    left side has one of the numbers of `leaves`: `letters` different letters, 0 and 1. `instruction` begins the prompt.
    Raise StepError if there are too few, or for a rule that is none.
    """
    try:
        made, rng, rows = read_rules(rules), np.random.default_rng(seed), dict[str, Row]()
    except ValueError as error:
        raise StepError(f"rewriting_goals: {error}") from error
    symbols = [*"abcdefghijklmnopqrst"[:letters], "0", "1"]
    for _ in range(MAX_DRAWS * size):
        left = draw_term(rng, symbols, leaves[int(rng.integers(len(leaves)))])
        wanted = steps[len(rows) % len(steps)]
        ends = list_reached(left, made, wanted)
        if not ends:
            continue
        goal = Goal(left, ends[int(rng.integers(len(ends)))], made)
        row = _make_row(goal, rules, wanted, instruction)
        if (int(row["id"], 16) < test_share * 2**64) == (split == "test"):
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(
        f"rewriting_goals: {MAX_DRAWS * size} terms gave {len(rows)} different {split} problems for `size: {size}`; "
        "lower `size` or `steps`, or allow more `leaves` and `letters`"
    )


def draw_term(rng: np.random.Generator, symbols: list[str], leaves: int) -> Term:
    """Return a random term with so many letters and digits."""
    if leaves == 1:
        return symbols[int(rng.integers(len(symbols)))]
    left = int(rng.integers(1, leaves))
    operator = "+*"[int(rng.integers(2))]
    return (operator, draw_term(rng, symbols, left), draw_term(rng, symbols, leaves - left))


def list_reached(left: Term, rules: Rules, distance: int) -> list[Term]:
    """Return the terms whose shortest proof from `left` has so many tactics."""
    seen, frontier = {left}, [left]
    for _ in range(distance):
        following: list[Term] = []
        for term in frontier:
            for _, changed in list_steps(term, rules, LARGEST):
                if changed not in seen:
                    seen.add(changed)
                    following.append(changed)
        frontier = following
    return frontier


def _make_row(goal: Goal, rules: dict[str, str], steps: int, instruction: str) -> Row:
    about = write_goal(goal, rules)
    return {
        "id": hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": f"{instruction}{goal}"}],
        "answer": None,
        "family": f"rewriting{steps}",
        "metadata": json.dumps(about | {"steps": steps}),
    }
