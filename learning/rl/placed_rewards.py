"""Rewards in workers of the role `reward`: the functions of a recipe, asked over there.

A reward goes there when everything it asks for is plain data. One that asks for problems and completions alone scores
each completion for itself: the completions are shared among the workers. One that sees more (`groups`, `samples`) is
asked in one piece. What asks for the policy, a sampler or a memory stays in the step's process.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from learning.lookup import Bound, asked_of
from learning.parallel.actors import Actors
from learning.parallel.pool import Pool
from learning.sampling.scoring import Answered, answered

PLAIN = frozenset({"rows", "completions", "groups", "sources", "samples", "step", "rng"})
"""What can be sent; `rng` is made over there from the seed."""
EACH = frozenset({"rows", "completions"})
ALWAYS = ("step", "seed", "round")
SCORING = threading.Lock()
"""Workers that are threads of one process share the models that rewards keep."""


class Scorer:
    """What runs in a reward worker; the models that a reward loads stay with it."""

    def score(self, bound: Bound, step: int, have: Mapping[str, Any]) -> Answered:
        """What a reward says, and what it raised."""
        with SCORING:
            return answered(bound, step, have)


@dataclass(frozen=True)
class Placed:
    """A reward that is asked in a worker, or shared among all."""

    bound: Bound
    pool: Pool
    each: bool
    """Whether it scores every completion for itself."""

    @property
    def name(self) -> str:
        """Its name in the recipe."""
        return self.bound.name

    @property
    def asks(self) -> list[str]:
        """What it is to be supplied with."""
        return self.bound.asks

    def settled(self, controls: Mapping[str, float]) -> "Placed":
        """The same with the numbers that controllers give."""
        return replace(self, bound=self.bound.settled(controls))

    def answered(self, step: int, have: Mapping[str, Any]) -> Answered:
        """What it says of the completions, and what it raised. Raises StepError."""
        sent = {name: have[name] for name in ALWAYS if name in have}
        if not self.each:
            sent |= {name: have[name] for name in PLAIN if name in have}
            return self.pool.map("score", [(self.bound, step, sent)])[0]
        total, workers = len(have["completions"]), len(self.pool.remotes)
        borders = [total * part // workers for part in range(workers + 1)]
        parts = [(start, end) for start, end in pairwise(borders) if start < end]
        asked = [
            {"rows": have["rows"][start:end], "completions": have["completions"][start:end]} for start, end in parts
        ]
        found = self.pool.map("score", [(self.bound, step, sent | part) for part in asked])
        return Answered(
            [score for part in found for score in part.scores],
            {
                start + i: said
                for (start, _), part in zip(parts, found, strict=True)
                for i, said in part.failures.items()
            },
            next((part.trace for part in found if part.failures), ""),
        )


def placed(rewards: Sequence[Bound], actors: Actors | None) -> tuple[Any, ...]:
    """The rewards, those in workers that can be, where the role `reward` has any."""
    if actors is None or not actors.size("reward"):
        return tuple(rewards)
    asked = [asked_of(bound) for bound in rewards]
    if not any(names <= PLAIN for names in asked):
        return tuple(rewards)
    pool = Pool(actors, "reward", Scorer)
    return tuple(
        Placed(bound, pool, names <= EACH) if names <= PLAIN else bound
        for bound, names in zip(rewards, asked, strict=True)
    )
