from itertools import combinations

import numpy as np
import pytest
from scipy.stats import bootstrap, permutation_test

from learning.evaluation.metrics import accuracy, pass_at
from learning.evaluation.statistics import (
    compute_bootstrap_interval,
    compute_detectable_difference,
    compute_sign_flip_p,
    estimate_difference,
    estimate_mean,
)

HOW = {"confidence": 0.95, "num_bootstrap": 4000, "seed": 0}


def test_pass_at_is_the_mean_over_all_choices_of_k():
    rng = np.random.default_rng(0)
    correct_PN = (rng.random((20, 7)) < 0.3).astype(float)
    for k in (1, 3, 7):
        wanted = [np.mean([max(row[list(c)]) for c in combinations(range(7), k)]) for row in correct_PN]
        np.testing.assert_allclose(pass_at(correct_PN, k=k), wanted, atol=1e-12)
    np.testing.assert_allclose(pass_at(correct_PN, k=1), accuracy(correct_PN))


def test_metrics_leave_out_what_could_not_be_scored():
    correct_PN = np.array([[1, np.nan, 0], [np.nan] * 3, [1, 1, 1]])
    np.testing.assert_array_equal(accuracy(correct_PN), [0.5, np.nan, 1.0])
    np.testing.assert_array_equal(pass_at(correct_PN, k=3), [np.nan, np.nan, 1.0])


def test_binary_means_have_wilsons_interval():
    estimate = estimate_mean(np.array([1.0] * 7 + [0.0] * 13 + [np.nan]), **HOW)
    z, n, p = 1.959963984540054, 20, 0.35
    centre, half = (p + z * z / (2 * n)) / (1 + z * z / n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (estimate.value, estimate.n) == (0.35, 20)
    assert (estimate.low, estimate.high) == pytest.approx(
        (centre - half / (1 + z * z / n), centre + half / (1 + z * z / n))
    )
    assert estimate_mean(np.array([np.nan]), **HOW) is None


@pytest.mark.parametrize(
    "values_P", [np.random.default_rng(1).normal(size=80), np.repeat([0.0, 0.5, 1.0], [30, 20, 30])]
)
def test_bootstrap_agrees_with_scipys(values_P):
    theirs = bootstrap((values_P,), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(2))
    ours = compute_bootstrap_interval(values_P, 0.95, 20000, 3)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    np.testing.assert_allclose(ours, theirs.confidence_interval, atol=0.04 * width)
    assert compute_bootstrap_interval(values_P, 0.95, 20000, 3) == ours


def test_paired_interval_covers_the_truth_and_is_tighter_than_unpaired():
    rng, covered, samples = np.random.default_rng(5), 0, 400
    for sample in range(samples):
        hard_P = rng.random(300)
        old_P, new_P = (hard_P < 0.5).astype(float), (hard_P + rng.normal(0, 0.05, 300) < 0.6).astype(float)
        estimate = estimate_difference(new_P, old_P, confidence=0.95, num_bootstrap=500, seed=sample)
        covered += estimate.low <= 0.1 <= estimate.high
    assert 0.92 < covered / samples < 0.98
    assert estimate.high - estimate.low < 0.6 * 2 * 1.96 * np.sqrt(2 * 0.25 / 300)


def test_p_values_agree_with_scipys_permutation_test():
    rng = np.random.default_rng(6)
    gain_P = rng.normal(0.3, 1, 60)
    theirs = permutation_test((gain_P,), np.sum, permutation_type="samples", n_resamples=20000, rng=rng).pvalue
    assert compute_sign_flip_p(gain_P, 20000, 7) == pytest.approx(theirs, abs=0.01)
    # McNemar, exact: 9 gains and 1 loss.
    assert compute_sign_flip_p(np.array([1.0] * 9 + [-1.0] + [0.0] * 50), 10, 0) == pytest.approx(2 * 11 / 2**10)
    assert compute_sign_flip_p(np.zeros(5), 10, 0) == 1.0


def test_detectable_difference_is_detected_in_four_of_five_tests():
    rng, spread, n = np.random.default_rng(8), 0.5, 300
    effect = compute_detectable_difference(spread, n, confidence=0.95)
    gains = rng.normal(effect, spread, (2000, n))
    z = gains.mean(1) / (gains.std(1, ddof=1) / np.sqrt(n))
    assert np.mean(np.abs(z) > 1.96) == pytest.approx(0.8, abs=0.03)
    assert estimate_difference(np.ones(1), np.zeros(1), **HOW).detectable is None
