"""The mean difference of two methods over seeds and problems, with its interval.

Shapes: S seeds, P problems. Every seed trains both methods, and every model answers the same problems: seeds and
problems are crossed. A difference varies with both, so a resample of problems alone, or of seeds alone, is too sure.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class SeedInterval:
    """A mean difference with its interval, and the two standard errors that make it."""

    value: float
    low: float
    high: float
    seeds_error: float
    """Standard error from seeds."""
    problems_error: float
    """Standard error from problems; 0 if only one number per seed is known."""


def estimate_over_seeds(gain_SP: np.ndarray, confidence: float) -> SeedInterval:
    """Return mean and interval of differences per seed and problem; (S, 1) for numbers that are not per problem.

    Raise ValueError for fewer than two seeds.
    """
    gain_S, gain_P = gain_SP.mean(1), gain_SP.mean(0)
    problems_error = float(gain_P.std(ddof=1) / len(gain_P) ** 0.5) if len(gain_P) > 1 else 0.0
    return combine_errors(gain_S, problems_error, len(gain_P), confidence)


def combine_errors(gain_S: np.ndarray, problems_error: float, num_problems: int, confidence: float) -> SeedInterval:
    """Return the interval from differences per seed and the standard error from problems.

    The variances of the two means are added, as in crossed random effects (Owen 2007, The Pigeonhole Bootstrap); what
    seed and problem do together is in both, so the interval is slightly too wide. Degrees of freedom are
    Satterthwaite's. Raise ValueError for fewer than two seeds.
    """
    if len(gain_S) < 2:
        raise ValueError("an interval over seeds needs at least two of them")
    value, seeds_error = float(gain_S.mean()), float(gain_S.std(ddof=1) / len(gain_S) ** 0.5)
    variance = seeds_error**2 + problems_error**2
    if variance == 0:
        return SeedInterval(value, value, value, 0.0, 0.0)
    spread = seeds_error**4 / (len(gain_S) - 1) + problems_error**4 / max(1, num_problems - 1)
    half = float(stdtrit(variance**2 / spread, 1 - (1 - confidence) / 2)) * variance**0.5
    return SeedInterval(value, value - half, value + half, seeds_error, problems_error)
