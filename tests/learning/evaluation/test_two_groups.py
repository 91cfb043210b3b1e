"""Differences between groups of different people: published numbers, an independent formula, the stated error."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from learning.evaluation.two_groups import compute_wilson_bounds, estimate_group_difference


@pytest.mark.parametrize(("wins", "n"), [(0, 20), (1, 20), (13, 40), (99, 100), (100, 100)])
@pytest.mark.parametrize("tail", [0.025, 0.0005])
def test_bounds_of_a_share_are_those_of_scipy(wins, n, tail):
    wanted = binomtest(wins, n).proportion_ci(1 - 2 * tail, method="wilson")
    assert compute_wilson_bounds(wins / n, n, tail) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_the_difference_is_the_published_one():
    """Newcombe 1998, Statistics in Medicine 17, 873-890, table II, cases (a), (e) and (h), method 10."""
    cases = {(56, 70, 48, 80): (0.0524, 0.3339), (5, 56, 0, 29): (-0.0381, 0.1926), (10, 10, 0, 10): (0.6075, 1.0)}
    for (a, n, b, m), bounds in cases.items():
        new, old = np.repeat([1.0, 0.0], [a, n - a]), np.repeat([1.0, 0.0], [b, m - b])
        made = estimate_group_difference(new, old, 0.025)
        assert made.value == pytest.approx(a / n - b / m)
        assert (made.low, made.high) == pytest.approx(bounds, abs=5e-5)


def test_graded_scores_are_covered_at_least_as_often_as_stated():
    rng, tail, missed = np.random.default_rng(0), 0.05, np.zeros(2)
    for _ in range(2000):
        made = estimate_group_difference(rng.beta(2, 1, 60), rng.beta(1, 2, 200), tail)
        missed += (made.low > 1 / 3, made.high < 1 / 3)
    assert (missed / 2000 <= tail + norm.ppf(0.999) * (tail * (1 - tail) / 2000) ** 0.5).all()
