"""The phases of a learning rate's schedule, in steps of the training: warm-up, and a decay at the end.

They are functions and no methods of the settings, so that a step's key covers them (decision 0030).
"""

import math
from typing import Protocol


class Schedule(Protocol):
    """The settings of a schedule (`schemas.training.Training`)."""

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up; 0: `warmup_ratio` says them."""
        ...

    @property
    def warmup_ratio(self) -> float:
        """Share of the steps."""
        ...

    @property
    def num_decay_steps(self) -> int | None:
        """Steps of the decay; none: a tenth."""
        ...


def find_schedule_problem(schedule: Schedule, total_steps: int) -> str | None:
    """Return why the phases of the schedule do not fit into so many steps; None if they do."""
    decay = count_decay_steps(schedule, total_steps) if schedule.num_decay_steps else 0
    warmup = count_warmup_steps(schedule, total_steps)
    if warmup + decay <= total_steps:
        return None
    given = f"warmup_steps: {schedule.warmup_steps}"
    if not schedule.warmup_steps:
        given = f"warmup_ratio: {schedule.warmup_ratio:g} ({warmup} steps)" if warmup else ""
    phases = " and ".join(filter(None, (given, f"num_decay_steps: {decay}" if decay else "")))
    return f"{phases} are more than the {total_steps} steps of the training"


def count_warmup_steps(schedule: Schedule, total_steps: int) -> int:
    """Return the number of warm-up steps."""
    return schedule.warmup_steps or math.ceil(schedule.warmup_ratio * total_steps)


def count_decay_steps(schedule: Schedule, total_steps: int) -> int:
    """Return the number of steps of the decay at the end of `warmup_stable_decay`."""
    return schedule.num_decay_steps or max(1, total_steps // 10)
