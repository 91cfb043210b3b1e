"""Tasks that are chosen by a critic's values of where their episodes begin. Shapes: K tasks, D numbers of a task."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from schemas.errors import StepError

Values = Callable[[np.ndarray], np.ndarray]
"""Values (K,) of tasks (K, D)."""
Count = Annotated[int, Field(ge=1)]


def accept_probability(difference: float, temperature: float) -> float:
    """Return min(1, exp(difference / temperature)), by which a chain goes on to a task of another value."""
    return float(np.exp(min(difference / temperature, 0.0)))


def metropolis(
    value_of: Values | None,
    low: np.ndarray,
    high: np.ndarray,
    rng: np.random.Generator,
    *,
    steps: Count = 20,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
) -> np.ndarray:
    """Choose the last task of a chain of Metropolis and Hastings, whose density is exp(value / temperature).

    It begins with any task; each step draws one number of the task again. Without a critic any task is as likely, so
    that the first episodes are; a constant one gives the same.
    """
    task = rng.uniform(low, high)
    if value_of is None:
        return task
    proposed = np.tile(task, (steps, 1))
    places, draws = rng.integers(len(low), size=steps), rng.uniform(low, high, (steps, len(low)))
    chance = rng.random(steps)
    value = float(value_of(task[None])[0])
    for step in range(steps):
        proposed[step] = task
        proposed[step, places[step]] = draws[step, places[step]]
        other = float(value_of(proposed[step : step + 1])[0])
        if chance[step] < accept_probability(other - value, temperature):
            task, value = proposed[step].copy(), other
    return task


def best_of(
    value_of: Values | None, low: np.ndarray, high: np.ndarray, rng: np.random.Generator, *, samples: Count = 256
) -> np.ndarray:
    """Choose the task of the highest value among some that are drawn. Raise StepError without a critic."""
    if value_of is None:
        raise StepError(
            "teacher best_of: it needs the critic of a policy of ppo or a2c, and an env that shows where episodes "
            "begin (`show_start`), as timed_reach does"
        )
    task_KD = rng.uniform(low, high, (samples, len(low)))
    return task_KD[int(np.argmax(value_of(task_KD)))]
