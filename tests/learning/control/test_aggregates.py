"""The interquartile mean and its stratified bootstrap against other formulas."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import trim_mean

from learning.control.reports.aggregates import compute_iqm, estimate_iqm, group_runs, make_run_lines


@pytest.mark.parametrize("shape", [(5, 1), (4, 3), (7, 2), (10, 4)])
def test_the_iqm_is_scipys_trimmed_mean(shape):
    scores = np.random.default_rng(0).normal(size=shape) ** 3
    assert compute_iqm(scores) == pytest.approx(trim_mean(scores, 0.25, axis=None), rel=1e-12)


def test_an_outlier_in_a_quarter_does_not_count():
    assert compute_iqm(np.array([[1.0], [2.0], [3.0], [1e9]])) == 2.5


def test_the_bootstrap_resamples_the_runs_of_each_world():
    """With 2 runs of 2 worlds all 16 resamples can be written down; worlds are never exchanged."""
    scores = np.array([[0.0, 10.0], [1.0, 30.0]])
    every = [
        np.mean(sorted([*a, *b])[1:3])
        for a, b in product(product((0.0, 1.0), repeat=2), product((10.0, 30.0), repeat=2))
    ]
    found = estimate_iqm(scores, confidence=0.8, num_bootstrap=200_000, seed=1)
    assert found.value == compute_iqm(scores)
    low, high = np.quantile(every * 1000, [0.1, 0.9])
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)
    assert found.n == 4


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Normal scores, whose trimmed mean is their mean; the bootstrap of 20 runs covers a little less than 90 %."""
    rng = np.random.default_rng(3)
    covered = [
        (e := estimate_iqm(rng.normal(size=(20, 2)), confidence=0.9, num_bootstrap=400, seed=s)).low <= 0 <= e.high
        for s in range(300)
    ]
    assert 0.83 < np.mean(covered) < 0.95


def test_runs_of_a_matrix_that_differ_in_the_seed_are_one_group():
    names = ["a@seed=1", "a@seed=2", "b", "p@loss=sac,seed=1", "p@loss=sac,seed=2", "p@loss=td3,seed=1", "q@seed=1"]
    assert group_runs(names) == {"a@seed=*": names[:2], "p@loss=sac,seed=*": names[3:5]}


def test_a_run_counts_with_its_mean_over_the_starts():
    values = {"mean_return": {f"a@seed={i}": np.array([i, i + 2.0]) for i in range(4)} | {"b": np.zeros(2)}}
    (line,) = make_run_lines(values, confidence=0.95, num_bootstrap=100, seed=0)
    assert (line["model"], line["metric"], line["value"], line["n"]) == ("a@seed=*", "iqm_mean_return", 2.5, 4)
    assert line["low"] <= 2.5 <= line["high"]
