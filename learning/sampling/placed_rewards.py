"""Rewards in workers of their own, the role `reward`.

A reward goes to workers when everything that it asks for is plain data. One that asks for problems and completions
alone scores each completion by itself: the completions are shared among the workers. One that sees more (`groups`,
`samples`) is called in one piece. A reward that asks for the policy, a sampler or a memory stays in the step's process.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from learning.lookup import Bound, Supplies, asked_of
from learning.parallel.actors import Actors
from learning.parallel.pool import Pool
from learning.sampling.scoring import Answered, PlacedReward, answered

PLAIN = frozenset({"rows", "completions", "groups", "sources", "samples", "step", "rng"})
"""Supplies that can be sent; `rng` is made by the worker from the seed."""
EACH = frozenset({"rows", "completions"})
ALWAYS = ("step", "seed", "round", "max_steps")
SCORING = threading.Lock()
"""Workers that are threads of one process share the models that rewards keep."""


class Scorer:
    """What runs in a reward worker; the models that a reward loads stay loaded."""

    def score(self, bound: Bound, step: int, supplies: Mapping[str, Any]) -> Answered:
        """Return the scores of a reward, and its exceptions."""
        with SCORING:
            return answered(bound, step, supplies)


@dataclass(frozen=True)
class Placed:
    """A reward that is computed in one worker, or shared among all."""

    bound: Bound
    pool: Pool
    each: bool
    """Whether it scores every completion by itself."""

    @property
    def name(self) -> str:
        """Its name in the recipe."""
        return self.bound.name

    @property
    def optional(self) -> bool:
        """Whether it is left out of the sum where it gives None."""
        return self.bound.optional

    @property
    def asks(self) -> list[str]:
        """The names that it asks for."""
        return self.bound.asks

    def settled(self, controls: Mapping[str, float]) -> "Placed":
        """Return the same with the numbers that controllers give."""
        return replace(self, bound=self.bound.settled(controls))

    def answered(self, step: int, supplies: Supplies) -> Answered:
        """Return its scores of the completions, and its exceptions. Raise StepError."""
        sent = {name: supplies[name] for name in ALWAYS if name in supplies}
        if not self.each:
            sent |= {name: supplies[name] for name in PLAIN if name in supplies}
            return self.pool.map("score", [(self.bound, step, sent)])[0]
        total, workers = len(supplies["completions"]), len(self.pool.remotes)
        borders = [total * part // workers for part in range(workers + 1)]
        spans = [(start, end) for start, end in pairwise(borders) if start < end]
        more = {"samples"} & {name for name in self.bound.may_ask if name in supplies}
        calls = [(self.bound, step, sent | {n: supplies[n][a:b] for n in sorted(EACH | more)}) for a, b in spans]
        answers: list[Answered] = self.pool.map("score", calls)
        return Answered(
            [score for answer in answers for score in answer.scores],
            {
                start + i: message
                for (start, _), answer in zip(spans, answers, strict=True)
                for i, message in answer.failures.items()
            },
            next((answer.trace for answer in answers if answer.failures), ""),
        )


def place_rewards(rewards: Sequence[Bound | PlacedReward], actors: Actors | None) -> tuple[Bound | PlacedReward, ...]:
    """Return the rewards, those that can be placed in the workers of the role `reward`, if there are any."""
    if actors is None or not actors.size("reward"):
        return tuple(rewards)
    placeable = {i for i, reward in enumerate(rewards) if isinstance(reward, Bound) and asked_of(reward) <= PLAIN}
    if not placeable:
        return tuple(rewards)
    pool = Pool(actors, "reward", Scorer)
    return tuple(
        Placed(reward, pool, asked_of(reward) <= EACH) if i in placeable and isinstance(reward, Bound) else reward
        for i, reward in enumerate(rewards)
    )
