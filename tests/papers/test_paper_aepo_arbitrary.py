"""Arbitrary Entropy Policy Optimization: the extra gradient equals π^T − π, and the entropy selects T.

Not shown: the accuracy that first rises and then falls with entropy at 7B.
"""

from functools import cache
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import History, Sample
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "aepo-arbitrary.yaml"
DOUBLE = {"dtype": torch.float64}
LOGITS = torch.tensor([0.9, 0.1], **DOUBLE).log()


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def sample(action, reward, source, group):
    lp = [float(LOGITS.log_softmax(-1)[action])]
    filled = {"scores": {"r": reward}, "reward": reward, "versions": [0]}
    return Sample({"id": "q", "family": "f"}, group, source, [1], [action], lp, "stop", "", **filled)


def extra_gradient(samples, z):
    """Gradient of minus the recipe's extra term, over its coefficient, by the logits of a bandit."""
    how = bind_algorithm(stage(), {})
    made = with_dropped(forest(samples), False)
    made = with_weights(how, with_advantages(how, made, 0), 0, 4)
    (term,) = how.loss_terms
    actions = [t.completion_ids[0] for t in samples]
    columns = view_columns(made, {"lp": z.log_softmax(-1)[actions], "entropy": torch.zeros(len(samples), **DOUBLE)})
    loss = (term.function.ask(0, columns) * columns["w.0_T"]).sum()
    return -torch.autograd.grad(loss, z)[0] / term.coef, made


@pytest.mark.parametrize(("temperature", "want"), [(2.0, [-0.15, 0.15]), (0.5, [0.0878, -0.0878])])
def test_the_expected_extra_gradient_of_a_bandit(temperature, want):
    source = "hot" if temperature > 1 else "cold"
    sampled = (LOGITS / temperature).softmax(-1)
    z = LOGITS.clone().requires_grad_()
    # Its log-probability is that of the policy itself, at temperature 1, whatever sampled the token.
    grads = [extra_gradient([sample(action, 1.0, source, 0)], z)[0] for action in range(2)]
    mean = sum(p * g for p, g in zip(sampled, grads, strict=True))
    torch.testing.assert_close(mean, sampled - LOGITS.softmax(-1), atol=1e-12, rtol=0)
    assert mean.tolist() == pytest.approx(want, abs=5e-4)


@pytest.mark.parametrize(("entropy", "source", "temperature"), [(0.3, "hot", 2.0), (0.7, "cold", 0.5)])
def test_the_entropy_says_which_temperature(entropy, source, temperature):
    plan = bind_sampling_slots(stage(), {}).prompt_sampler
    assert plan.options["target"] == 0.5
    supplies = {"rows": [{"id": "a"}, {"id": "b"}], "num_groups": 2, "n": 8, "seed": 0, "step": 3, "states": {}}
    requests = plan.ask(3, {**supplies, "history": History(), "metrics": {"entropy": entropy}})
    assert [(a.source, a.temperature) for a in requests] == [("policy", None)] * 2 + [(source, temperature)] * 2
    assert [a.n for a in requests] == [8] * 4
    # Before the first entropy is known, and at the target, there are no others.
    for metrics in ({}, {"entropy": 0.5}):
        assert [a.source for a in plan.ask(3, {**supplies, "history": History(), "metrics": metrics})] == ["policy"] * 2


def test_wrong_completions_add_exactly_nothing_unlike_an_entropy_bonus():
    z = LOGITS.clone().requires_grad_()
    wrong, _ = extra_gradient([sample(0, 0.0, "hot", 0), sample(1, -1.0, "hot", 1)], z)
    assert wrong.tolist() == [0.0, 0.0]
    both, _ = extra_gradient([sample(1, 1.0, "hot", 0), sample(0, 0.0, "hot", 1)], z)
    right, _ = extra_gradient([sample(1, 1.0, "hot", 0)], z)
    torch.testing.assert_close(both, right / 2)
    bonus = bind_algorithm(stage("bonus"), {}).loss_terms[0]
    entropy = torch.distributions.Categorical(logits=z).entropy()
    (grad,) = torch.autograd.grad(-bonus.function.ask(0, {"entropy_T": entropy[None]}).sum(), z)
    assert float(grad.abs().sum()) > 0.1
    # It is a bonus: the loss falls with the entropy.
    assert bonus.function.ask(0, {"entropy_T": torch.tensor([0.7], **DOUBLE)}).tolist() == [-0.7]
    assert bonus.coef > 0


def test_the_terms_do_not_mix():
    """Hot completions have no part in GRPO's loss, own ones none in the extra term, nor in each other's weights."""
    samples = [
        sample(0, 1.0, "policy", 0),
        sample(1, 0.0, "policy", 0),
        sample(1, 1.0, "hot", 1),
        sample(0, 0.0, "hot", 1),
    ]
    gradient, made = extra_gradient(samples, LOGITS.clone().requires_grad_())
    assert made.sampled("w").tolist() == [0.5, 0.5, 0.0, 0.0]
    coef = stage().loss_terms[0].coef
    assert made.sampled("w.0").tolist() == pytest.approx([0.0, 0.0, coef / 2, coef / 2])
    alone, _ = extra_gradient(samples[2:], LOGITS.clone().requires_grad_())
    torch.testing.assert_close(gradient, alone)
    assert made.sampled("advantage")[:2].tolist() == pytest.approx([1 / 2**0.5, -1 / 2**0.5], abs=1e-3)
