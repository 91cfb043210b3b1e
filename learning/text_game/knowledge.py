"""Knowledge for agents in text (Chhikara et al. 2023): actions that were correct, and what visible things are good for.

A fact is a triple: `(you, did, open door)` of the memory, `(door, can, open)` of the affordances. The same facts are
written as text, or become edges of a graph.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from learning.data.patterns import Pattern
from schemas.errors import StepError

Fact = tuple[str, str, str]
Kind = Literal["none", "memory", "affordance", "both"]
DID, CAN = "did", "can"


@dataclass(frozen=True)
class Knowledge:
    """Which facts an agent gets."""

    kind: Kind = "both"
    affordances: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What can be done with each thing: `{door: [open, go]}`."""
    shown_as: Mapping[str, str] = field(default_factory=dict)
    """Patterns by which things are seen whose names do not stand in the text; those of others are their names."""

    def __post_init__(self) -> None:
        """Raise StepError for a pattern of a thing that has no affordances, or that does not compile."""
        if unknown := sorted(self.shown_as.keys() - self.affordances.keys()):
            raise StepError(f"knowledge: `shown_as` has {unknown[0]!r}, which `affordances` lacks; add it there")
        for thing, pattern in self.shown_as.items():
            try:
                Pattern(pattern)
            except re.error as error:
                raise StepError(f"knowledge: `shown_as` of {thing!r} is no regular expression: {error}") from error

    def list_facts(self, taken: Sequence[tuple[str, float]], seen: str) -> list[Fact]:
        """Return the facts after actions with their rewards, of a text that is seen: memory first, in order."""
        facts: list[Fact] = []
        if self.kind in ("memory", "both"):
            facts += [("you", DID, action) for action in remember_correct(taken)]
        if self.kind in ("affordance", "both"):
            facts += [(thing, CAN, verb) for thing in self.find_visible(seen) for verb in self.affordances[thing]]
        return facts

    def find_visible(self, seen: str) -> list[str]:
        """Return the things with affordances that a text shows, in the order of the table."""
        patterns = {thing: self.shown_as.get(thing, rf"(?<!\w){re.escape(thing)}(?!\w)") for thing in self.affordances}
        return [thing for thing, pattern in patterns.items() if Pattern(pattern).search(seen) is not None]


def remember_correct(taken: Sequence[tuple[str, float]]) -> list[str]:
    """Return the actions that raised the score, in the order in which they were taken."""
    return [action for action, reward in taken if reward > 0]


def write_facts(facts: Sequence[Fact]) -> str:
    """Return facts as lines `done: open door, take key` and `can: door open, door go`; empty without facts."""
    done = ", ".join(action for _, relation, action in facts if relation == DID)
    can = ", ".join(f"{thing} {verb}" for thing, relation, verb in facts if relation == CAN)
    return "\n".join(f"{name}: {text}" for name, text in (("done", done), ("can", can)) if text)
