"""The learning rate of a step: warm-up, then constant, linear, cosine, or stable with a decay at the end."""

import math
from collections.abc import Callable

from schemas.errors import StepError
from schemas.schedule_phases import count_decay_steps, count_warmup_steps, find_schedule_problem
from schemas.training import Training

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "cosine_with_min_lr": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "1-sqrt": lambda share: 1.0 - math.sqrt(share),
}
"""Factor by the share of a decay that has passed, from 1 at its beginning to 0 at its end."""


def learning_rate_at(training: Training, step: int, total_steps: int) -> float:
    """Return the learning rate of a step (0-based).

    It rises linearly over the warm-up, then follows the schedule down to `min_lr_ratio` of the peak. Stable phase and
    decay: Hu et al. 2024 (arXiv 2404.06395); 1-sqrt: Hägele et al. 2024 (arXiv 2405.18392). Raise StepError if the
    phases do not fit into the steps.
    """
    if problem := find_schedule_problem(training, total_steps):
        raise StepError(problem)
    warmup = count_warmup_steps(training, total_steps)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    decay = _decay_factor(training, step, warmup, total_steps)
    return training.learning_rate * (training.min_lr_ratio + (1.0 - training.min_lr_ratio) * decay)


def _decay_factor(training: Training, step: int, warmup: int, total_steps: int) -> float:
    """Return the factor of a step after the warm-up, without the floor: 1 before a decay, towards 0 in it."""
    kind = training.lr_scheduler_type
    if kind == "constant":
        return 1.0
    if kind != "warmup_stable_decay":
        return DECAYS[kind]((step - warmup) / max(1, total_steps - warmup))
    start = max(warmup, total_steps - count_decay_steps(training, total_steps))
    return 1.0 if step < start else DECAYS[training.decay_type]((step - start) / (total_steps - start))
