"""What a sampler of a search proposes: settings, a share of the training's steps, and a trial to go on from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from schemas.search_space import Range, Value, is_whole

Space = Mapping[str, Range | list[Value]]


@dataclass(frozen=True)
class Proposal:
    """A trial: with `settings`, for a `share` of the steps, on the model of the trial `parent` or on a new one."""

    settings: dict[str, Value]
    share: float = 1.0
    parent: int | None = None


@runtime_checkable
class Proposer(Protocol):
    """A sampler that plans its trials itself; the same seed and values make the same proposals."""

    keeps_models: bool
    """Whether trials may go on from the models of others."""

    def begin(self, space: Space, *, maximize: bool) -> None:
        """Take the space."""
        ...

    def propose(self) -> Proposal | None:
        """Return the next trial; None if all are made."""
        ...

    def tell(self, value: float | None) -> None:
        """Take the value of the trial proposed last; None: it failed."""
        ...


def decode(values: Range | list[Value], unit: float) -> Value:
    """Return the value of a setting at a place from 0 to 1 of its range or list."""
    unit = min(max(unit, 0.0), 1.0)
    if isinstance(values, list):
        return values[min(int(unit * len(values)), len(values) - 1)]
    low, high = float(values.low), float(values.high)
    if is_whole(values) and not values.log:
        step = int(values.step or 1)
        return int(low) + step * min(int(unit * ((high - low) // step + 1)), int((high - low) // step))
    value = low * (high / low) ** unit if values.log else low + unit * (high - low)
    if values.step is not None:
        value = low + values.step * round((value - low) / values.step)
    return round(value) if is_whole(values) else float(min(max(value, low), high))


def draw_units(space: Space, rng: np.random.Generator) -> dict[str, float]:
    """Return an evenly drawn place from 0 to 1 of every setting."""
    return {path: float(rng.random()) for path in space}


def decode_all(space: Space, units: Mapping[str, float]) -> dict[str, Value]:
    """Return the settings at places from 0 to 1."""
    return {path: decode(values, units[path]) for path, values in space.items()}


def rank(value: float | None, *, maximize: bool) -> float:
    """Return a number that is higher for better values, and lowest for a failure."""
    return -np.inf if value is None else value if maximize else -value
