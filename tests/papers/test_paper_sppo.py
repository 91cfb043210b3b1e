"""Self-Play Preference Optimization: each log-prob is regressed on its own target, computed from win rates of duels.

Not shown: win rates on AlpacaEval.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.evaluation.sampled_answers import compute_weighted_scores
from learning.lookup import bind
from learning.preference.games import sppo
from learning.preference.pair_losses import dpo
from learning.rewards import duels
from learning.samples.engine_protocol import Generation, Sampling
from learning.sampling.sampler import Sampler
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "sppo.yaml"


def stage(name):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def one(value):
    return torch.tensor([value], dtype=torch.float64)


def pair(chosen, rejected, rates=(0.8, 0.2), eta=1.0):
    """Loss of a pair by its log-ratios to the policy of the round."""
    zero = one(0.0)
    return sppo(chosen, rejected, zero, zero, one(rates[0]), one(rates[1]), eta=eta)


def test_a_completion_is_regressed_on_its_win_rate():
    met = pair(one(0.3), one(-0.3))
    assert met.item() == pytest.approx(0, abs=1e-15)
    other = pair(one(0.3), one(-0.3), rates=(0.5, 0.2))
    assert other.item() == pytest.approx(0.09, abs=1e-15)
    assert pair(one(0.0), one(0.0), rates=(0.5, 0.5)).item() == 0


def test_a_log_ratio_is_to_the_policy_of_the_round():
    zero = one(-2.0), one(-3.0), one(-2.3), one(-2.7)
    assert sppo(*zero, one(0.8), one(0.2), eta=1.0).item() == pytest.approx(0, abs=1e-15)


def test_what_both_sides_share_is_nothing_to_dpo_and_something_to_sppo():
    for shift in (0.0, 1.5):
        sides = one(-2.0 + shift), one(-3.0 + shift)
        ref = one(-2.5), one(-2.8)
        losses = dpo(*sides, *ref, beta=0.1), sppo(*sides, *ref, one(0.8), one(0.2), eta=1.0)
        if shift == 0:
            first = losses
    assert losses[0].item() == pytest.approx(first[0].item(), abs=1e-15)
    assert abs(losses[1].item() - first[1].item()) > 1


def test_winners_and_losers_are_pulled_apart():
    chosen, rejected = one(0.0).requires_grad_(), one(0.0).requires_grad_()
    pair(chosen, rejected, rates=(0.9, 0.1)).sum().backward()
    assert chosen.grad.item() == pytest.approx(-0.8)
    assert rejected.grad.item() == pytest.approx(0.8)


def test_the_win_rates_of_a_problems_samples_average_one_half():
    """Row means of the matrix of duels with a draw on the diagonal: a constant-sum game."""
    samples = stage("rounds-1-samples")
    assert samples.num_generations == 5
    rewards = [bind(use, f"rewards.{i}") for i, use in enumerate(samples.rewards)]
    rows = [{"id": i, "answer": a, "prompt": []} for i, a in (("p", "12"), ("q", "3")) for _ in range(5)]
    texts = ["12", "12 ", "13", "4", "120", "3", "3", "30", "3.0", "x"]
    rates = compute_weighted_scores(rewards, [1.0], rows, texts)
    assert sum(rates[:5]) / 5 == pytest.approx(0.5, abs=1e-14)
    assert sum(rates[5:]) / 5 == pytest.approx(0.5, abs=1e-14)
    assert rates[5] == rates[6]
    assert max(rates[:5]) == rates[0]
    by = samples.rewards[0].options["by"]
    sig = 1 / (1 + torch.exp(-torch.tensor([0.0, by["brevity"], by["correct"], 2 + -by["brevity"], 2 + by["brevity"]])))
    # 12 is right and short: it draws with itself, is shorter by one than "12 ", right where the other three are not.
    assert rates[0] == pytest.approx(float(sig.double().mean()), abs=1e-6)


class Start:
    """An engine that gives the same answer to everything."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def generate(self, requests, sampling):
        return [[Generation(self.tokenizer.encode("13"), [], "stop")] for _ in requests]


def test_a_completion_of_the_report_wins_if_it_is_preferred_to_that_of_the_start(tiny_policy, monkeypatch):
    report = stage("report")
    opponent = Sampler(Start(tiny_policy.tokenizer), tiny_policy, Sampling(), 0, 0)
    monkeypatch.setattr(duels, "guest", lambda folder, engine: opponent)
    reward = bind(report.rewards[0], "rewards.0", {"rewards.0.opponent": Path("start")})
    row = {"id": "p", "prompt": [{"role": "user", "content": "5 + 7 ="}], "answer": "12"}
    texts = ["12", "4", "13", "120"]
    supplies = {"rows": [row] * 4, "completions": texts, "rng": np.random.default_rng(0)}
    by = report.rewards[0].options["by"]
    odds = [by["correct"], by["brevity"], 0.0, -by["brevity"]]
    assert reward.ask(0, supplies) == pytest.approx([1 / (1 + math.exp(-odd)) for odd in odds])


def test_each_round_plays_on_its_own_third_of_the_exercises(tmp_path):
    from learning.data.rows import write_rows

    rows = [{"id": str(i), "prompt": [], "answer": "", "family": "f", "metadata": "{}"} for i in range(10)]
    write_rows(tmp_path, "prompts", rows)
    parts = []
    for i in (1, 2, 3):
        use = stage(f"rounds-{i}-samples").problems[0]
        parts.append({row["id"] for row in bind(use, "problems.0", {"problems.0.data": tmp_path})()})
    assert set.union(*parts) == {row["id"] for row in rows}
    assert sum(map(len, parts)) == 10
    assert sorted(map(len, parts)) == [3, 3, 4]


def test_the_loss_is_against_the_policy_that_the_samples_are_of():
    recipe = load_recipe(RECIPE, profile="tiny")
    for i in (1, 2, 3):
        ports = {n: {p.path: p.steps for p in recipe.ports(f"rounds-{i}-{n}")} for n in ("samples", "tune")}
        assert ports["samples"]["model"] == ports["tune"]["model"]
        assert recipe.stages[f"rounds-{i}-tune"].previous is None
        assert bind(recipe.stages[f"rounds-{i}-tune"].loss[0]).function is sppo
