"""Tests of a difference on the same problems, and the smallest difference that they can see.

Each is one-sided and wrong at most with probability `tail` where there is no difference. Shapes: P problems.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, cast

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from learning.evaluation.statistics import compute_bootstrap_interval

Test = Literal["paired_bootstrap", "mcnemar"]
POWER = 0.8
"""Share of cases in which a true difference of the smallest detectable size is seen."""


def compute_bootstrap_bounds(gain_P: np.ndarray, tail: float, *, num_bootstrap: int, seed: int) -> tuple[float, float]:
    """Return lower and upper bound of the mean, each missed with probability `tail`.

    Percentiles of resampled means are too narrow for few problems; taken further out, they cover as Student's t would
    for normal values (Hesterberg 2015, What Teachers Should Know About the Bootstrap, section 4.3).
    """
    n = len(gain_P)
    if n < 2:
        return float("-inf"), float("inf")
    further_out = float(ndtr(np.sqrt(n / (n - 1)) * stdtrit(n - 1, tail)))
    return compute_bootstrap_interval(gain_P, 1 - 2 * further_out, num_bootstrap, seed)


def compute_mcnemar_p(wins: int, losses: int) -> float:
    """Return chance of so many wins or more where a win is as likely as a loss: McNemar's test, one-sided and exact.

    Problems on which both models are right, or both wrong, say nothing about the difference.
    """
    from scipy.stats import binom  # all distributions take long to import, and few gates need this one

    return float(binom.sf(wins - 1, wins + losses, 0.5))


def compute_mcnemar_power(n: int, discordance: float, difference: float, tail: float) -> float:
    """Return chance that McNemar's exact test sees a true difference on n problems.

    `discordance` is the probability that exactly one of the models is right; the difference cannot exceed it.
    """
    from scipy.stats import binom

    unlike, needed = np.arange(n + 1), _most_wins(n, tail)
    rejects = binom.sf(needed, unlike, (1 + difference / discordance) / 2)
    return float(binom.pmf(unlike, n, discordance) @ np.nan_to_num(rejects))


@lru_cache(maxsize=64)
def _most_wins(n: int, tail: float) -> np.ndarray:
    """Return the most wins that the test does not reject, for 0 to n unlike problems: (n + 1,)."""
    from scipy.stats import binom

    return np.asarray(binom.isf(tail, np.arange(n + 1), 0.5))


def find_minimum_detectable(
    n: int, tail: float, *, spread: float, test: Test = "paired_bootstrap", floor: float = 0.0, power: float = POWER
) -> float | None:
    """Return the smallest true difference that the test detects with this power; None if n problems cannot show any.

    `spread` is the root mean square of the problems' differences, at most 1 for metrics between 0 and 1; for McNemar's
    test its square is the share of problems on which exactly one model is right. A difference within `floor` counts as
    none.
    """
    if n < 2:
        return None
    if test == "mcnemar":
        return _mcnemar_detectable(n, tail, spread**2, power)
    error = spread / np.sqrt(n)
    return float(max(floor, stdtrit(n - 1, 1 - tail) * error) + ndtri(power) * error)


def _mcnemar_detectable(n: int, tail: float, discordance: float, power: float) -> float | None:
    from scipy.optimize import brentq

    def lacking(difference: float) -> float:
        return compute_mcnemar_power(n, max(discordance, difference), difference, tail) - power

    least = 1e-6
    if lacking(1.0) < 0:
        return None
    return least if lacking(least) > 0 else float(cast(float, brentq(lacking, least, 1.0, xtol=1e-4)))


def estimate_noise_floor(difference_R: Sequence[float] | np.ndarray, tail: float) -> float:
    """Return size that a difference reaches by sampling alone, in one direction, with probability `tail`.

    From the differences that R equal evaluations of the same two models gave; sampling is taken for normal, with
    Student's t for few of them.
    """
    return float(stdtrit(len(difference_R) - 1, 1 - tail) * np.std(difference_R, ddof=1))
