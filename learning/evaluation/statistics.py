"""How sure a number is: intervals of means, differences between models on the same problems, what could be seen at all.

Shapes: P problems, R resamples.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

DRAWS_PER_BATCH = 1 << 22
"""Numbers alive at once while resampling."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n problems with its interval."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean paired difference with its interval, p-value and the smallest true difference seen in 80 % of such tests."""

    value: float
    low: float
    high: float
    n: int
    p_value: float
    detectable: float | None
    """None for a single problem."""


def estimate_mean(values_P: np.ndarray, *, confidence: float, num_bootstrap: int, seed: int) -> Estimate | None:
    """Return mean and interval: Wilson's for values that are all 0 or 1, else percentile bootstrap. NaN is left out.

    None when nothing is left.
    """
    values_P = values_P[~np.isnan(values_P)]
    n = len(values_P)
    if n == 0:
        return None
    mean = float(values_P.mean())
    if np.isin(values_P, (0.0, 1.0)).all():
        from scipy.stats import binomtest  # all distributions take long to import, and planning needs none

        ends = binomtest(round(values_P.sum()), n).proportion_ci(confidence, method="wilson")
        return Estimate(mean, float(ends.low), float(ends.high), n)
    return Estimate(mean, *compute_bootstrap_interval(values_P, confidence, num_bootstrap, seed), n)


def compute_bootstrap_interval(
    values_P: np.ndarray, confidence: float, num_bootstrap: int, seed: int
) -> tuple[float, float]:
    """Return percentile interval of the mean.

    How often each distinct value is drawn is multinomial, so equal values are resampled together: for 0/1 scores a
    resample costs two or three numbers instead of P.
    """
    distinct_U, counts_U = np.unique(values_P, return_counts=True)
    rng, n, batch = np.random.default_rng(seed), len(values_P), max(1, DRAWS_PER_BATCH // len(distinct_U))
    sizes = [min(batch, num_bootstrap - done) for done in range(0, num_bootstrap, batch)]
    means_R = np.concatenate([rng.multinomial(n, counts_U / n, size) @ distinct_U / n for size in sizes])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means_R, [tail, 1 - tail])
    return float(low), float(high)


def estimate_difference(
    new_P: np.ndarray, old_P: np.ndarray, *, confidence: float, num_bootstrap: int, seed: int
) -> Difference | None:
    """Return `new` − `old` over the problems that both have a score of; None if there is none."""
    gain_P = new_P - old_P
    gain_P = gain_P[~np.isnan(gain_P)]
    if len(gain_P) == 0:
        return None
    low, high = compute_bootstrap_interval(gain_P, confidence, num_bootstrap, seed)
    n = len(gain_P)
    return Difference(
        float(gain_P.mean()),
        low,
        high,
        n,
        compute_sign_flip_p(gain_P, num_bootstrap, seed),
        compute_detectable_difference(float(gain_P.std(ddof=1)), n, confidence=confidence) if n > 1 else None,
    )


def compute_sign_flip_p(gain_P: np.ndarray, num_flips: int, seed: int) -> float:
    """Return two-sided p-value of no difference: every paired difference might as well have had the other sign.

    Exact (McNemar's test) when all differences have one size, else by random flips with the observed one counted.
    """
    moved_P = gain_P[gain_P != 0]
    if len(moved_P) == 0:
        return 1.0
    if np.ptp(np.abs(moved_P)) == 0:
        from scipy.stats import binomtest

        return float(binomtest(int((moved_P > 0).sum()), len(moved_P)).pvalue)
    rng, extreme, batch = np.random.default_rng(seed), 1, max(1, DRAWS_PER_BATCH // len(moved_P))
    least = abs(moved_P.sum()) * (1 - 1e-12)
    for done in range(0, num_flips, batch):
        signs = rng.integers(0, 2, (min(batch, num_flips - done), len(moved_P))) * 2 - 1
        extreme += int((np.abs(signs @ moved_P) >= least).sum())
    return extreme / (num_flips + 1)


def compute_detectable_difference(spread: float, n: int, *, confidence: float, power: float = 0.8) -> float:
    """Return the smallest mean difference that n problems detect with this power; `spread` is the deviation."""
    return float((ndtri(1 - (1 - confidence) / 2) + ndtri(power)) * spread / np.sqrt(n))
