"""Rewards from costs by name, with weights that grow over a training. Shapes: N worlds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from learning.lookup import Inner
from schemas.control import CostsUse
from schemas.errors import StepError

if TYPE_CHECKING:
    CostsFunction = Inner
else:
    CostsFunction = CostsUse
"""Option of a slot's function: costs by name, which it gets bound."""


def grow(first: float, factor: float, limit: float, times: int) -> float:
    """Return a weight that was multiplied by a factor some times, and never passed its limit."""
    grown = first * factor**times
    return min(grown, limit) if factor >= 1 else max(grown, limit)


def add_costs(
    costs: Mapping[str, np.ndarray], weights: Mapping[str, float], *, alive: float = 2.0, scale: float = 0.5
) -> np.ndarray:
    """Return rewards from 0 on: `alive` less the weighted costs, times `scale`; a cost without a weight is free."""
    total = sum(weights.get(name, 0.0) * cost_N for name, cost_N in costs.items())
    return np.maximum(scale * (alive - total), 0.0)


def weigh_costs(
    action_N: np.ndarray,
    next_observation_NO: np.ndarray,
    step: int,
    *,
    costs: CostsFunction,
    weights: dict[str, list[float]],
    every: Annotated[int, Field(ge=1)] = 100_000,
    alive: float = 2.0,
    scale: float = 0.5,
) -> dict[str, np.ndarray]:
    """Replace rewards by weighted costs; each weight is given as its first value, a factor and a limit.

    After every `every` steps of each world all weights are multiplied by their factors (Eschmann et al. 2024). Use
    `relabel_every` with the same number, so that kept steps have the rewards of the present weights. Raise StepError
    for a weight of no cost.
    """
    found = costs(action_N=action_N, next_observation_NO=next_observation_NO)
    for name, given in weights.items():
        if name not in found or len(given) != 3:
            raise StepError(
                f"relabel weigh_costs: weight `{name}`: {given}; give [first, factor, limit] for any of "
                f"{', '.join(sorted(found))}"
            )
    now = {name: grow(first, factor, limit, step // every) for name, (first, factor, limit) in weights.items()}
    return {"reward": add_costs(found, now, alive=alive, scale=scale)}
