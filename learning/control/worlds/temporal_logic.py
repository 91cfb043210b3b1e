"""Formulas of signal temporal logic as subgoals with windows of time and invariants.

Read are conjunctions of `F[a,b] NAME` (within steps a to b the region is reached), `G[a,b] NAME` and `G[a,b] !NAME`
(it is never left, or never entered, from a to b).
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from schemas.errors import StepError

FILE = "plan.json"
PART = re.compile(r"\s*([FG])\s*\[\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\]\s*(!?)\s*([A-Za-z_]\w{0,30})\s*")


@dataclass(frozen=True)
class Subgoal:
    """A region to be reached at some step from `first` to `last`."""

    region: str
    first: int
    last: int


@dataclass(frozen=True)
class Invariant:
    """A region in which the point is, or is not, at all steps from `first` to `last`."""

    region: str
    inside: bool
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """What a formula asks for; subgoals are in the order of their windows."""

    subgoals: tuple[Subgoal, ...]
    invariants: tuple[Invariant, ...]


def read_formula(text: str) -> Plan:
    """Return the subgoals and invariants of a formula. Raise StepError for what is none."""
    subgoals: list[Subgoal] = []
    invariants: list[Invariant] = []
    for number, part in enumerate(text[:2000].split("&"), 1):
        match = PART.fullmatch(part)
        if match is None:
            raise StepError(
                f"formula: part {number}, `{part.strip()[:60]}`, is not F[a,b] NAME, G[a,b] NAME or G[a,b] !NAME; "
                "parts are joined by &"
            )
        kind, first, last, sign, name = match[1], int(match[2]), int(match[3]), match[4], match[5]
        if first > last or (kind == "F" and sign):
            raise StepError(
                f"formula: part {number}: the window {first} to {last} is empty, or F has a region to avoid"
            )
        if kind == "F":
            subgoals.append(Subgoal(name, first, last))
        else:
            invariants.append(Invariant(name, not sign, first, last))
    if not subgoals:
        raise StepError("formula: nothing is to be reached: give a part F[a,b] NAME")
    return Plan(tuple(sorted(subgoals, key=lambda goal: (goal.last, goal.first))), tuple(invariants))


def decompose(context: Any, *, formula: str) -> dict[str, float]:
    """Write the subgoals and invariants of a formula as `plan.json`."""
    plan = read_formula(formula)
    (context.output("result") / FILE).write_text(json.dumps(asdict(plan), indent=1) + "\n")
    return {"subgoals": len(plan.subgoals), "invariants": len(plan.invariants)}


def read_plan(folder: Path) -> Plan:
    """Return what `decompose` wrote. Raise StepError for anything else."""
    try:
        read = json.loads((folder / FILE).read_text())
        goals = tuple(Subgoal(**one) for one in read["subgoals"])
        return Plan(goals, tuple(Invariant(**one) for one in read["invariants"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"plan: {folder.name} has no {FILE} of `decompose`: {type(error).__name__}: {error}") from error
