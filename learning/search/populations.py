"""Samplers that plan their trials themselves: settings by hand, populations that train in parts, brackets of shares."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.search.proposals import Proposal, Space, decode_all, draw_units, rank
from schemas.errors import StepError
from schemas.search_space import Value

Several = Annotated[int, Field(ge=2)]
Chance = Annotated[float, Field(ge=0, le=1)]


class ByHand:
    """Settings that are written in the recipe, in their order."""

    keeps_models = False

    def __init__(self, settings: list[dict[str, Value]]) -> None:
        self.left = list(settings)

    def begin(self, space: Space, *, maximize: bool) -> None:
        """Take the space. Raise StepError for other settings than its own."""
        for number, given in enumerate(self.left):
            if set(given) != set(space):
                raise StepError(f"sampler by_hand: settings.{number} must give {', '.join(space)}, as `space`")

    def propose(self) -> Proposal | None:
        """Return the next settings."""
        return Proposal(dict(self.left.pop(0))) if self.left else None

    def tell(self, value: float | None) -> None:
        """Take no notice."""


def by_hand(seed: int, *, settings: list[dict[str, Value]]) -> ByHand:
    """Return a sampler that tries the given settings in their order: tuning by hand, at a stated cost."""
    return ByHand(settings)


class Population:
    """Members that train in parts; after each part the worst go on from the best, with changed settings."""

    keeps_models = True

    def __init__(
        self, seed: int, members: int, generations: int, quantile: float, redraw: float, factor: float
    ) -> None:
        self.rng = np.random.default_rng([seed, 2])
        self.members, self.generations = members, generations
        self.quantile, self.redraw, self.factor = quantile, redraw, factor
        self.made: list[tuple[dict[str, float], float]] = []
        """Places of every trial's settings, and how good it was."""

    def begin(self, space: Space, *, maximize: bool) -> None:
        """Take the space."""
        self.space, self.maximize = space, maximize
        self.next: list[tuple[dict[str, float], int | None]] = [
            (draw_units(space, self.rng), None) for _ in range(self.members)
        ]

    def propose(self) -> Proposal | None:
        """Return the next part of a member's training."""
        if len(self.made) == self.members * self.generations:
            return None
        units, parent = self.next[len(self.made) % self.members]
        return Proposal(decode_all(self.space, units), 1 / self.generations, parent)

    def tell(self, value: float | None) -> None:
        """Take the value of a part; after the last member's, plan the next parts."""
        units, _ = self.next[len(self.made) % self.members]
        self.made.append((units, rank(value, maximize=self.maximize)))
        if len(self.made) % self.members == 0:
            self._plan()

    def _plan(self) -> None:
        """Let the lowest quantile continue from members of the highest, with settings perturbed or drawn again."""
        first = len(self.made) - self.members
        order = sorted(range(first, len(self.made)), key=lambda trial: -self.made[trial][1])
        count = max(1, int(self.quantile * self.members))
        for place, trial in enumerate(range(first, len(self.made))):
            parent = trial
            if trial in order[-count:] or self.made[trial][1] == -np.inf:
                parent = int(self.rng.choice(order[:count]))
            units = dict(self.made[parent][0])
            if parent != trial:
                units = {path: self._explore(unit) for path, unit in units.items()}
            self.next[place] = units, None if self.made[parent][1] == -np.inf else parent

    def _explore(self, unit: float) -> float:
        """Return a place changed by the factor up or down, or drawn again."""
        if self.rng.random() < self.redraw:
            return float(self.rng.random())
        changed = unit * self.factor if self.rng.random() < 0.5 else unit / self.factor
        return min(max(changed, 0.0), 1.0)


def pbt(
    seed: int,
    *,
    members: Several = 4,
    generations: Several = 3,
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25,
    redraw: Chance = 0.25,
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.8,
) -> Population:
    """Return population-based training: `members` train in `generations` parts (Jaderberg et al. 2017).

    After each part the lowest `quantile` goes on from a member of the highest, its settings multiplied or divided by
    `factor` on their scale from 0 to 1, or drawn again with chance `redraw`.
    """
    return Population(seed, members, generations, quantile, redraw, factor)


class Brackets:
    """Shares of the steps that grow by a factor; each share has a population that evolves by differences."""

    keeps_models = False

    def __init__(self, seed: int, members: int, eta: int, rungs: int, mutation: float, crossover: float) -> None:
        self.rng = np.random.default_rng([seed, 3])
        self.shares = [float(eta) ** (rung + 1 - rungs) for rung in range(rungs)]
        self.sizes = [max(1, members // eta**rung) for rung in range(rungs)]
        self.mutation, self.crossover = mutation, crossover

    def begin(self, space: Space, *, maximize: bool) -> None:
        """Take the space."""
        self.space, self.maximize = space, maximize
        self.populations: list[list[tuple[dict[str, float], float]]] = [[] for _ in self.sizes]
        self.rung, self.place, self.bracket = 0, 0, 0

    def propose(self) -> Proposal:
        """Return the next trial: there is always another bracket."""
        self.units = self._choose()
        return Proposal(decode_all(self.space, self.units), self.shares[self.rung])

    def tell(self, value: float | None) -> None:
        """Keep the trial if it is no worse than the member in its place, and go on."""
        own, made = self.populations[self.rung], (self.units, rank(value, maximize=self.maximize))
        if self.bracket == 0:
            own.append(made)
        elif made[1] >= own[self.place][1]:
            own[self.place] = made
        self.place += 1
        if self.place == self.sizes[self.rung]:
            self.rung, self.place = self.rung + 1, 0
        if self.rung == len(self.sizes):
            self.rung, self.bracket = 0, self.bracket + 1

    def _choose(self) -> dict[str, float]:
        """Return settings: drawn in the first rung at first, promoted in the others, later evolved."""
        if self.bracket == 0 and self.rung == 0:
            return draw_units(self.space, self.rng)
        if self.bracket == 0:
            ranked = sorted(self.populations[self.rung - 1], key=lambda member: -member[1])
            return ranked[self.place][0]
        parents = self.populations[max(self.rung - 1, 0)]
        if self.rung:  # the best of the share below are what this share's members are changed towards
            parents = sorted(parents, key=lambda member: -member[1])[: max(3, self.sizes[self.rung])]
        return self._evolve(self.populations[self.rung][self.place][0], [units for units, _ in parents])

    def _evolve(self, target: Mapping[str, float], parents: list[dict[str, float]]) -> dict[str, float]:
        """Return a member crossed with a + F (b − c) of three parents (rand/1/bin); places outside are drawn again."""
        first, second, third = (parents[i] for i in self.rng.choice(len(parents), 3, replace=len(parents) < 3))
        forced = int(self.rng.integers(len(self.space)))
        child = dict(target)
        for place, path in enumerate(self.space):
            mutant = first[path] + self.mutation * (second[path] - third[path])
            if not 0 <= mutant <= 1:
                mutant = float(self.rng.random())
            if place == forced or self.rng.random() < self.crossover:
                child[path] = mutant
        return child


def dehb(
    seed: int,
    *,
    members: Several = 9,
    eta: Several = 3,
    rungs: Several = 2,
    mutation: Chance = 0.5,
    crossover: Chance = 0.5,
) -> Brackets:
    """Return differential evolution in Hyperband's brackets (Awad et al. 2021), until the search's limits end it.

    `members` trials take 1/`eta`^(`rungs` − 1) of the steps, the best `members` / `eta` of them `eta` times as many, up
    to all steps. In later brackets every share's population evolves, mutants being made of the best of the share below.
    """
    return Brackets(seed, members, eta, rungs, mutation, crossover)
