"""From Uniform to Heterogeneous: bounds, advantages and temperature depend on the entropy of a token, with HAPO's
constants.

Not shown: gains on AIME.
"""

import math
from functools import cache
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.algorithm.policy_losses.heterogeneous import compute_clip_bounds, redistribute_advantages
from learning.batch.batch_layout import single_turn
from learning.batch.columns import ColumnView
from learning.batch.token_measures import score_entropy
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "hapo.yaml"
DOUBLE = {"dtype": torch.float64}


@cache
def algorithm():
    return bind_algorithm(load_recipe(RECIPE, profile="tiny").stages["trained"], {})


def surrogate():
    """The recipe's surrogate where log-entropies of −2, 0 and 2 score −1, 0 and 1."""
    return algorithm().policy_loss.settled({"lowest": -2.0, "pivot": 0.0, "highest": 2.0})


def gradient(ratio, h, advantage):
    """Derivative of the loss by the log-ratio, over −ρ: the advantage that counts, 0 where the ratio is clipped."""
    log_ratio = torch.tensor([ratio], **DOUBLE).log().requires_grad_()
    entropy = torch.tensor([math.exp(2 * h)], **DOUBLE)
    supplies = {
        "log_ratio_T": log_ratio,
        "advantage_T": torch.tensor([advantage], **DOUBLE),
        "entropy_behav_T": entropy,
    }
    (slope,) = torch.autograd.grad(surrogate().ask(0, supplies).sum(), log_ratio)
    return -slope.item() / ratio


def test_bounds_are_the_tokens_own():
    low, high = compute_clip_bounds(torch.tensor([0.5, -0.5, 0.0], **DOUBLE), 0.2, 0.28)
    assert low.tolist() == pytest.approx([0.2, 0.3, 0.2], abs=1e-15)
    assert high.tolist() == pytest.approx([0.42, 0.28, 0.28], abs=1e-15)


@pytest.mark.parametrize(("h", "lower", "upper"), [(0.5, 0.8, 1.42), (-0.5, 0.7, 1.28)])
def test_the_loss_stops_at_the_tokens_own_bounds(h, lower, upper):
    assert gradient(upper - 0.01, h, 1.0) > 0
    assert gradient(upper + 0.01, h, 1.0) == 0
    assert gradient(lower + 0.01, h, -1.0) < 0
    assert gradient(lower - 0.01, h, -1.0) == 0


def test_a_punished_token_is_left_alone_from_ten_times_its_probability():
    assert gradient(9.9, 0.5, -1.0) == pytest.approx(-1.5)
    assert gradient(10.1, 0.5, -1.0) == 0


def test_redistribution_is_inside_the_band_for_certain_tokens_and_outside_for_uncertain_ones():
    # The band reaches half-way to the bounds: from 0.9 to 1.21 at h = 0.5, from 0.85 to 1.14 at h = −0.5.
    assert gradient(1.0, 0.5, 2.0) == pytest.approx(2.0)
    assert gradient(1.3, 0.5, 2.0) == pytest.approx(3.0)
    assert gradient(1.0, -0.5, 2.0) == pytest.approx(1.0)
    assert gradient(1.2, -0.5, 2.0) == pytest.approx(2.0)
    # The lower half of the bands, which end at 0.9 and 0.85.
    assert gradient(0.85, 0.5, -2.0) == pytest.approx(-3.0)
    assert gradient(0.95, 0.5, -2.0) == pytest.approx(-2.0)
    assert gradient(0.8, -0.5, -2.0) == pytest.approx(-2.0)
    assert gradient(0.9, -0.5, -2.0) == pytest.approx(-1.0)
    h, one = torch.tensor([0.5, -0.5], **DOUBLE), torch.ones(2, **DOUBLE)
    got = redistribute_advantages(one, h, torch.tensor([1.0, 1.0]), 0.2 * one, 0.28 * one)
    assert got.tolist() == [1.0, 0.5]


def test_switches_of_the_recipe_turn_each_part_off():
    plain = algorithm().policy_loss
    options = {**plain.options, "low": -2.0, "pivot": 0.0, "high": 2.0, "epsilon": 0.2, "epsilon_high": 0.28}
    off = {**options, "adaptive_clip": False, "redistribute": False, "delta": None}
    log_ratio = torch.linspace(-0.5, 0.5, 11, **DOUBLE)
    advantage = torch.tensor([1.0, -1.0] * 5 + [1.0], **DOUBLE)
    entropy = torch.linspace(0.1, 5, 11, **DOUBLE)
    got = plain.function(log_ratio, advantage, entropy, **off)
    rho = log_ratio.exp()
    want = -torch.minimum(rho * advantage, rho.clamp(0.8, 1.28) * advantage)
    torch.testing.assert_close(got, want, atol=1e-15, rtol=0)


def batch(lengths):
    groups = [[Generation([7] * n, [-1.0] * n, "stop", [0.1 * (i + 1)] * n) for i, n in enumerate(lengths)]]
    made = single_turn([[1]], groups).with_paths(reward=torch.tensor([1.0, 0.0], **DOUBLE))
    return with_dropped(made, False)


def test_the_average_of_a_group_is_over_its_tokens():
    made = with_advantages(algorithm(), batch([1, 3]), 0).sampled("advantage")
    assert made.tolist() == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], abs=1e-4)
    assert made.sum().item() == pytest.approx(0.0, abs=1e-12)
    # GRPO is the same without `broadcast_to_tokens`, the average over completions.
    stage = load_recipe(RECIPE, profile="tiny").stages["trained"]
    assert [use.use for use in stage.advantage] == ["broadcast_to_tokens", "center", "scale"]
    plain = bind_algorithm(stage.model_copy(update={"advantage": stage.advantage[1:]}), {})
    grpo = with_advantages(plain, batch([1, 3]), 0).sampled("advantage")
    assert grpo.tolist() == pytest.approx([1.0, -1.0, -1.0, -1.0], abs=1e-5)
    assert grpo.sum().item() == pytest.approx(-2.0, abs=1e-5)


def test_temperature_follows_the_entropy():
    stage = load_recipe(RECIPE, profile="tiny").stages["trained"]
    (process,) = bind_sampling_slots(stage, {}).logits_processors
    even, sharp = torch.zeros(1, 8, **DOUBLE), torch.tensor([[9.0, *[0.0] * 7]], **DOUBLE)
    for logits, share in ((even + torch.arange(8) / 100, 0.5), (sharp, -0.5)):
        entropy = math.log(float(-(logits.softmax(-1) * logits.log_softmax(-1)).sum()))
        # Where the entropy lies half-way between the pivot and an end, h is ±½.
        ends = {"lowest": entropy - 1, "pivot": entropy - 1, "highest": entropy + 1}
        if share < 0:
            ends = {"lowest": entropy - 1, "pivot": entropy + 1, "highest": entropy + 2}
        got = process.settled(ends).ask(0, {"logits_BV": logits})
        torch.testing.assert_close(got, logits / (1 + 0.05 * share), atol=1e-12, rtol=0)


def test_scores_of_entropy_span_the_batch_around_a_quantile():
    entropy = torch.tensor([0.01, 0.1, 0.2, 0.5, 1.5], **DOUBLE)
    control = algorithm().controllers
    scores = {name: part.ask(0, ColumnView(batch([1, 3]), entropy_behav_T=entropy)) for name, part in control.items()}
    assert scores == pytest.approx({"lowest": math.log(0.01), "pivot": math.log(0.5), "highest": math.log(1.5)})
    h = score_entropy(entropy, scores["lowest"], scores["pivot"], scores["highest"])
    assert h[[0, 3, 4]].tolist() == pytest.approx([-1, 0, 1])
    half_way = torch.tensor([math.sqrt(0.01 * 0.5), math.sqrt(0.5 * 1.5), 9.0, 0.0], **DOUBLE)
    assert score_entropy(half_way, *scores.values()).tolist() == pytest.approx([-0.5, 0.5, 1, -1])
