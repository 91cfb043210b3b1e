"""The difference of two means over different people, such as users of two models: no pairs, scores between 0 and 1.

Shapes: N values of the new model, M of the old one.
"""

import numpy as np
from scipy.special import ndtri

from learning.evaluation.statistics import Estimate


def compute_wilson_bounds(mean: float, n: int, tail: float) -> tuple[float, float]:
    """Return lower and upper bound of a mean of n scores between 0 and 1, each missed with probability `tail`.

    Wilson's score interval (1927). Scores between 0 and 1 vary at most as much as zeros and ones of the same mean, so
    for graded scores it is too wide, never too narrow.
    """
    z2 = float(ndtri(tail)) ** 2
    centre = (mean + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (mean * (1 - mean) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def estimate_group_difference(new_N: np.ndarray, old_M: np.ndarray, tail: float) -> Estimate:
    """Return the mean of `new` minus that of `old`, with bounds that are each missed with probability `tail`.

    Newcombe's hybrid of two Wilson intervals (1998, method 10), which keeps its level near 0 and 1, where a normal
    approximation does not. Both groups must have a value.
    """
    new, old = float(new_N.mean()), float(old_M.mean())
    new_low, new_high = compute_wilson_bounds(new, len(new_N), tail)
    old_low, old_high = compute_wilson_bounds(old, len(old_M), tail)
    low = new - old - float(np.hypot(new - new_low, old_high - old))
    high = new - old + float(np.hypot(new_high - new, old - old_low))
    return Estimate(new - old, low, high, len(new_N) + len(old_M))
