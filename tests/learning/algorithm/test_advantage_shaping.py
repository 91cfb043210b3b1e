"""Advantages of single tokens, changed: numbers worked out by hand."""

import math

import pytest
import torch

from learning.algorithm import advantage_shaping as modulation
from learning.samples.sample import SOURCES

A = torch.tensor([2.0, -2.0, 0.0, 1.0], dtype=torch.float64)


def test_by_sign():
    assert modulation.by_sign(A, positive=0.1, negative=3.0).tolist() == [0.2, -6.0, 0.0, 0.1]
    assert modulation.by_sign(A).tolist() == A.tolist()


def test_by_source():
    source_T = torch.tensor([SOURCES.index(s) for s in ("policy", "expert", "expert", "replay")])
    assert modulation.by_source(A, source_T, of=["expert", "replay"], factor=0.5).tolist() == [2.0, -1.0, 0.0, 0.5]


def test_focal_is_a_power_of_what_is_missing():
    lp_T = torch.tensor([0.36, 0.99, 0.5, 1.0], dtype=torch.float64).log()
    want = [2 * 0.8, -2 * 0.1, 0.0, 0.0]
    assert modulation.focal(A, lp_T, gamma=0.5).tolist() == pytest.approx(want, abs=1e-12)


def test_entropy_bonus_never_turns_a_sign():
    entropy_T = torch.tensor([0.5, 0.5, 9.0, 9.0], dtype=torch.float64)
    got = modulation.entropy_bonus(A, entropy_T, alpha=0.4, kappa=2.0).tolist()
    assert got == pytest.approx([2.2, -1.8, 0.0, 1.5])
    assert modulation.entropy_bonus(A, 100 * entropy_T).tolist() == pytest.approx([3.0, -1.0, 0.0, 1.5])


def test_novelty_lifts_the_unlikely_among_the_right():
    # Two groups; in the first, right completions at mean log-probability −2 and −0.5 and a wrong one at −3.
    lp_T = torch.tensor([-2.5, -1.5, -0.5, -3.0, -1.0, -1.0], dtype=torch.float64)
    path_T = torch.tensor([0, 0, 1, 2, 3, 4])
    group_T = torch.tensor([7, 7, 7, 7, 9, 9])
    reward_T = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    advantage_T = torch.tensor([0.5, 0.5, 0.5, -1.0, 1.0, -1.0], dtype=torch.float64)
    columns = (advantage_T, lp_T, path_T, group_T, reward_T)
    got = modulation.novelty(*columns, weight=0.2, kappa=0.5)
    # The three completions of the first group are at −5.5/3 in the mean.
    gain = 0.2 * (1 - math.exp(-2 + 5.5 / 3))
    assert got.tolist() == pytest.approx([0.5 + gain, 0.5 + gain, 0.5, -1.0, 1.0, -1.0])
    capped = modulation.novelty(*columns, weight=20.0, kappa=0.5)
    assert capped.tolist() == pytest.approx([0.75, 0.75, 0.5, -1.0, 1.0, -1.0])
    order = torch.tensor([5, 2, 0, 3, 1, 4])
    moved = modulation.novelty(*(c[order] for c in columns), weight=0.2, kappa=0.5)
    assert moved.tolist() == pytest.approx(got[order].tolist())


@pytest.mark.parametrize("advantage", [0.0, -0.5])
def test_novelty_does_not_change_an_advantage_that_is_not_above_0(advantage):
    lp_T = torch.tensor([-9.0, -1.0], dtype=torch.float64)
    both_T, path_T, group_T = torch.tensor([advantage] * 2), torch.tensor([0, 1]), torch.tensor([3, 3])
    assert modulation.novelty(both_T, lp_T, path_T, group_T, torch.ones(2)).tolist() == [advantage] * 2


def test_fading():
    place_T = torch.tensor([0, 1, 2, 0])
    assert modulation.fading(A, place_T, gamma=0.5).tolist() == [2.0, -1.0, 0.0, 1.0]


def test_balanced_sums_to_zero_where_both_signs_exist():
    got = modulation.balanced(A)
    assert got.tolist() == [2.0, -3.0, 0.0, 1.0]
    assert math.isclose(float(got.sum()), 0.0, abs_tol=1e-12)
    assert modulation.balanced(A.abs()).tolist() == A.abs().tolist()
