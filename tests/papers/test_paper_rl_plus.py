"""RL-PLUS: expert tokens have the mixture's ratio and the focal factor; own tokens have exactly GRPO's values.

Not shown: that capability boundaries collapse without it.
"""

from functools import cache
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.samples.sample import Sample
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rl-plus.yaml"
DOUBLE = {"dtype": torch.float64}


@cache
def algorithm(stage="trained"):
    return bind_algorithm(load_recipe(RECIPE, profile="tiny").stages[stage], {})


def objective(old, now, external, advantage=1.0, behav=None, stage="trained"):
    """Minus the loss of one token, its gradient by log π, and its ratio."""
    how = algorithm(stage)
    lp = torch.tensor([now], **DOUBLE).log().requires_grad_()
    supplies = {
        "lp_T": lp,
        "lp_prox_T": torch.tensor([old], **DOUBLE).log(),
        "lp_behav_T": torch.tensor([1.0 if external else behav or old], **DOUBLE).log(),
        "external_T": torch.tensor([external]),
        "advantage_T": torch.tensor([advantage], **DOUBLE),
    }
    supplies["log_ratio_T"] = how.ratio.ask(0, supplies)
    loss = how.policy_loss.ask(0, supplies).sum()
    return -loss.item(), -torch.autograd.grad(loss, lp)[0].item(), supplies["log_ratio_T"].exp().item()


@pytest.mark.parametrize("advantage", [1.0, -0.7])
def test_an_experts_token(advantage):
    value, gradient, ratio = objective(0.2, 0.36, True, advantage)
    assert ratio == pytest.approx(2 * 0.36 / (0.2 + 0.6), abs=1e-12)
    assert ratio == pytest.approx(0.9, abs=1e-12)
    assert value == pytest.approx(0.9 * 0.8 * advantage, abs=1e-12)
    # Were the factor (1 − π)^½ differentiated, the gradient would be smaller by ρ·½·π/(1 − π)^½.
    assert gradient == pytest.approx(0.72 * advantage, abs=1e-12)


def test_what_the_policy_says_anyway_hardly_counts():
    value, _, ratio = objective(0.99, 0.99, True)
    assert value / ratio == pytest.approx(0.1, abs=1e-12)


def test_an_experts_token_is_not_clipped():
    value, gradient, ratio = objective(0.001, 0.6, True)
    assert ratio > 2
    assert gradient == pytest.approx(value, abs=1e-12)
    assert gradient > 0


def test_own_tokens_keep_the_value_and_gradient_of_grpo():
    for now in (0.2, 0.22, 0.3):
        for advantage in (1.0, -1.0):
            value, gradient, _ = result = objective(0.25, now, False, advantage, behav=0.2)
            assert result == objective(0.25, now, False, advantage, behav=0.2, stage="baseline")
            rho = now / 0.2
            want = min(rho * advantage, min(max(rho, 0.8), 1.2) * advantage)
            assert value == pytest.approx(want, abs=1e-12)
            assert gradient == pytest.approx(rho * advantage if want == rho * advantage else 0.0, abs=1e-12)


def test_advantages_are_of_the_group_with_the_expert_in_it():
    row = {"id": "p", "family": "countdown"}
    own = [
        Sample(row, 0, "policy", [1], [5, 6], [-1.0, -1.0], "stop", "", scores={"r": 0.0}, reward=0.0) for _ in "abc"
    ]
    expert = Sample(row, 0, "expert", [1], [7], None, "stop", "", scores={"r": 1.0}, reward=1.0)
    made = with_dropped(forest([*own, expert]), False)
    made = with_weights(algorithm(), with_advantages(algorithm(), made, 0), 0, 32)
    assert made.sampled("external").tolist() == [False] * 6 + [True]
    assert made.sampled("advantage").tolist() == pytest.approx([-0.4999] * 6 + [1.4997], abs=1e-4)
    assert made.sampled("w").tolist() == pytest.approx([1 / 7] * 7)
    alone = with_advantages(algorithm("baseline"), with_dropped(forest(own), False), 0)
    assert alone.sampled("advantage").tolist() == [0.0] * 6
