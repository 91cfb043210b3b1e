"""Rewards reshaped: exact numbers."""

import math

import pytest
import torch

from learning.algorithm import reward_shaping as shaping
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import RewardShapingUse


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_overlong_is_eq_13_of_dapo():
    length_P = torch.tensor([1, 12, 14, 16, 20])
    got = shaping.overlong(column(1, 1, 1, 0, 0), length_P, max_length=16, cache=4)
    assert got.tolist() == [1.0, 1.0, 0.5, -1.0, -1.0]
    got = shaping.overlong(column(1, 1, 1, 0, 0), length_P, max_length=16, cache=4, weight=0.5)
    assert got.tolist() == [1.0, 1.0, 0.75, -0.5, -0.5]
    with pytest.raises(StepError, match=r"cache \(5\) exceeds max_length \(4\)"):
        shaping.overlong(column(1), torch.tensor([1]), max_length=4, cache=5)


def test_truncated():
    got = shaping.truncated(column(1, 1, 0.5), torch.tensor([True, False, True]), reward=-1)
    assert got.tolist() == [-1.0, 1.0, -1.0]


def test_kl_in_reward_sums_k1_over_each_path():
    behav_T, ref_T = column(-1, -2, -3, -0.5), column(-1.5, -2.25, -2, -0.5)
    path_T = torch.tensor([0, 0, 2, 1])
    got = shaping.kl_in_reward(column(1, 1, 0), behav_T, ref_T, path_T, beta=0.1)
    assert got.tolist() == pytest.approx([1 - 0.1 * 0.75, 1.0, 0.1])


def test_kl_in_reward_is_the_kl_in_expectation():
    p, q = torch.softmax(column(0.3, -1, 0.8), 0), torch.softmax(column(-0.2, 0.5, 0.1), 0)
    shaped = shaping.kl_in_reward(column(0, 0, 0), p.log(), q.log(), torch.arange(3), beta=1.0)
    assert float(-(p * shaped).sum()) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-15)


def test_bonus_counts_only_where_its_gate_is_met_and_may_fade():
    scores = {"answers.exact": column(1, 0, 1), "formats.brevity": column(-0.5, -0.25, 0)}
    reward = scores["answers.exact"]
    got = shaping.bonus(reward, scores, of="formats.brevity", where="answers.exact", weight=0.5)
    assert got.tolist() == [0.75, 0.0, 1.0]
    everywhere = shaping.bonus(reward, scores, of="formats.brevity", weight=2.0)
    assert everywhere.tolist() == [0.0, -0.5, 1.0]
    fading = {"linear": {"from": 1.0, "to": 0.0, "steps": 4}}
    bound = bind(RewardShapingUse.model_validate({"use": "bonus", "of": "formats.brevity", "weight": fading}))
    supplies = {"reward_P": reward, "scores_P": scores}
    assert [bound.ask(step, supplies).tolist()[0] for step in (0, 2, 4)] == [0.5, 0.75, 1.0]
    with pytest.raises(StepError, match=r"no reward 'exact' in this stage; it has: answers.exact, formats.brevity"):
        shaping.bonus(reward, scores, of="exact")


def test_tiered_takes_the_first_tier_that_is_missed():
    scores = {"form": column(0, 1, 1, 0), "answer": column(1, 0, 1, 0)}
    got = shaping.tiered(column(9, 9, 9, 9), scores, tiers={"form": -1.0, "answer": 0.0}, top=2.0)
    assert got.tolist() == [-1.0, 0.0, 2.0, -1.0]


def test_shorter_is_relative_to_the_group():
    group_P = torch.tensor([4, 4, 4, 2, 2])
    length_P = torch.tensor([10, 20, 30, 7, 7])
    scores = {"answers.exact": column(1, 1, 0, 1, 0)}
    got = shaping.shorter(scores["answers.exact"], scores, group_P, length_P, weight=0.4)
    assert got.tolist() == pytest.approx([1.2, 1.0, -0.2, 1.0, 0.0])
    wrong = {"answers.exact": column(0, 1, 1, 1, 0)}
    got = shaping.shorter(wrong["answers.exact"], wrong, group_P, length_P, weight=0.4)
    assert got.tolist() == pytest.approx([0.0, 1.0, 0.8, 1.0, 0.0])


def test_efficient_costs_the_right_and_long():
    scores = {"answers.exact": column(1, 1, 0)}
    length_P = torch.tensor([2, 6, 40])
    got = shaping.efficient(scores["answers.exact"], scores, length_P, alpha=0.1)
    sigmoid = 1 / (1 + math.exp(-1))
    assert got.tolist() == pytest.approx([1 - 0.1 * (1 - sigmoid), 1 - 0.1 * sigmoid, 0.0])
    same = shaping.efficient(scores["answers.exact"], scores, torch.tensor([3, 3, 9]), alpha=0.1)
    assert same.tolist() == [1.0, 1.0, 0.0]
