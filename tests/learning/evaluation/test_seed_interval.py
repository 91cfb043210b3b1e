"""Intervals over seeds and problems: closed forms, and coverage in a simulation."""

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from learning.evaluation.seed_interval import combine_errors, estimate_over_seeds


def test_without_problems_it_is_students_interval_over_seeds():
    gain_S = np.array([0.1, 0.3, 0.2, 0.25])
    made = estimate_over_seeds(gain_S[:, None], 0.95)
    low, high = ttest_1samp(gain_S, 0.0).confidence_interval(0.95)
    assert (made.value, made.low, made.high) == pytest.approx((gain_S.mean(), low, high))


def test_variances_of_seeds_and_problems_are_added():
    gain_SP = np.array([[0.0, 1.0, 0.5], [0.25, 0.75, 0.5]])
    made = estimate_over_seeds(gain_SP, 0.9)
    seeds, problems = 0.0, gain_SP.mean(0).var(ddof=1) / 3  # both seeds have the mean 0.5
    half = student.ppf(0.95, 2) * (seeds + problems) ** 0.5
    assert (made.value, made.low, made.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert made.seeds_error == 0
    both = combine_errors(np.array([0.4, 0.6]), 0.1, 3, 0.9)
    assert both.high - both.value == pytest.approx(student.ppf(0.95, (0.02) ** 2 / (0.01**2 + 0.01**2 / 2)) * 0.02**0.5)


def test_equal_differences_have_no_width_and_one_seed_no_interval():
    made = estimate_over_seeds(np.full((3, 4), 0.5), 0.95)
    assert (made.low, made.value, made.high) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="at least two"):
        estimate_over_seeds(np.ones((1, 5)), 0.95)


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_the_interval_covers_the_true_difference(num_seeds):
    rng, covered, runs = np.random.default_rng(0), 0, 600
    for _ in range(runs):
        seeds, problems = rng.normal(0, 0.02, (num_seeds, 1)), rng.normal(0, 0.3, (1, 200))
        gain_SP = 0.05 + seeds + problems + rng.normal(0, 0.3, (num_seeds, 200))
        made = estimate_over_seeds(gain_SP, 0.95)
        covered += made.low <= 0.05 <= made.high
    assert covered / runs > 0.94
