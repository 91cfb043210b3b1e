"""The merges that a search tries: every combination of the listed values, or some of them drawn at random."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from schemas.base import JsonObject
from schemas.stages.merge_search import MergeSpace


@dataclass(frozen=True)
class Candidate:
    """A merge: its method and the parameters of all models together, and of each."""

    name: str
    merge_method: str
    parameters: JsonObject
    by_model: tuple[JsonObject, ...]
    """Parameters of each model, in the order of the models."""

    def describe(self) -> str:
        """Return the parameters in words: `weight 0.25/0.75, density 0.5`."""
        names = list(self.by_model[0])
        own = [f"{name} {'/'.join(f'{model[name]:.3g}' for model in self.by_model)}" for name in names]
        return ", ".join([*own, *(f"{name} {value:.3g}" for name, value in self.parameters.items())])


def list_candidates(
    spaces: Sequence[MergeSpace], num_models: int, max_candidates: int | None, seed: int
) -> list[Candidate]:
    """Return the merges of all spaces in order, named `<method>-<number>`; at most `max_candidates`, drawn by seed."""
    numbers: dict[str, int] = {}
    candidates: list[Candidate] = []
    for space in spaces:
        for by_model, parameters in _combine(space, num_models):
            number = numbers[space.merge_method] = numbers.get(space.merge_method, 0) + 1
            method = space.merge_method
            candidates.append(Candidate(f"{method}-{number}", method, dict(parameters), by_model))
    if max_candidates is None or len(candidates) <= max_candidates:
        return candidates
    chosen = np.random.default_rng(seed).permutation(len(candidates))[:max_candidates]
    return [candidates[place] for place in sorted(chosen.tolist())]


def _combine(space: MergeSpace, num_models: int) -> Iterator[tuple[tuple[JsonObject, ...], Mapping[str, object]]]:
    """Yield parameters of each model and of all of them."""
    shares = list(_list_shares(space.weight_steps, num_models)) if space.weight_steps else [()]
    own = [list(product(values, repeat=num_models)) for values in space.each.values()]
    for share, *values in product(shares, *own):
        columns = ({"weight": share} if space.weight_steps else {}) | dict(zip(space.each, values, strict=True))
        by_model = tuple({name: column[model] for name, column in columns.items()} for model in range(num_models))
        for common in product(*space.parameters.values()):
            yield by_model, dict(zip(space.parameters, common, strict=True))


def _list_shares(steps: int, num_models: int) -> Iterator[tuple[float, ...]]:
    """Yield weights that sum to 1 in steps of 1/steps, without those of one model alone."""
    for counts in product(range(steps + 1), repeat=num_models - 1):
        left = steps - sum(counts)
        if left >= 0 and max(*counts, left) < steps:
            yield tuple(count / steps for count in (*counts, left))
