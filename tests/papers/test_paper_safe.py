"""SAFE: the two critics give the soft minimum, the penalty depends on entropy, and the threshold stays in its range.

Not shown: the stability of runs at 3B.
"""

import json
import math
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.lookup import bind
from learning.rl.update import regulate
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "safe.yaml"


def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def test_two_critics_give_the_soft_minimum():
    block = stage().critic
    assert block.heads == 2
    combine = bind(block.combine)
    both = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    assert block.combine.options["alpha"] == 0.3
    want = -0.3 * math.log((1 + math.exp(-math.log(3.0) / 0.3)) / 2)
    assert float(combine(both)) == pytest.approx(want, abs=1e-12)
    assert 0.0 < float(combine(both)) < float(both.mean()) == pytest.approx(0.549, abs=1e-3)
    sharp = bind(block.combine.model_copy(update={"alpha": 1e-3}))
    assert float(sharp(both)) == pytest.approx(0.0, abs=1e-3)


def test_the_critics_loss_is_the_mean_of_two_huber_losses():
    loss = bind(stage().critic.loss)
    value, old, target = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 0.0, 0.1))
    got = loss.ask(0, {"value_T": value, "value_old_T": old, "return_T": target})
    # Errors 0.9, beyond 0.5, and 0.1 of the value that is held at 0.2.
    assert float(got) == pytest.approx((0.5 * (0.9 - 0.25) + 0.5 * 0.1**2) / 2, abs=1e-12)


def run(points):
    """Both controls over a series of iterations; what they remember goes through JSON."""
    algorithm, states, metrics = bind_algorithm(stage(), {}), {}, []
    for step, point in enumerate(points):
        metrics.append(regulate(algorithm, step, {"metrics": point, "states": states, "step": step}))
        states = json.loads(json.dumps(states))
    return metrics


@pytest.mark.parametrize(("entropy", "factor"), [(0.9, 2.0), (3.9, 0.5)])
def test_the_penalty_is_quadratic_and_gated_by_entropy(entropy, factor):
    """The coefficient of the KL term is the derivative of 0.1·(KL − 0.3)²·factor; the average starts at 0."""
    (metrics,) = run([{"kl": 8.0, "entropy": entropy, "reward": 0.5}])
    assert metrics["threshold"] == 0.3

    def penalty(kl):
        return 0.1 * (kl - 0.3) ** 2 * factor

    assert metrics["slope"] == pytest.approx((penalty(0.8 + 1e-5) - penalty(0.8 - 1e-5)) / 2e-5, rel=1e-6)


def test_the_kl_is_a_moving_average():
    first, second = run([{"kl": 8.0, "entropy": 0.9}, {"kl": 0.0, "entropy": 0.9}])
    assert first["slope"] == pytest.approx(0.2 * 0.5 * 2, rel=1e-12)
    assert second["slope"] == pytest.approx(0.2 * (0.9 * 0.8 - 0.3) * 2, rel=1e-12)


def test_below_the_threshold_there_is_no_penalty():
    assert [s["slope"] for s in run([{"kl": 3.0, "entropy": 0.1}, {"kl": 0.0, "entropy": 9.0}])] == [0.0, 0.0]


def test_the_threshold_follows_the_change_of_the_average_reward():
    """The average moves by 0.05 of the distance; the first change has no change before it."""
    rewards = [0.2, 0.6, 0.5]
    average, changes = rewards[0], []
    for reward in rewards[1:]:
        changes.append(0.05 * (reward - average) - 0.001)
        average += 0.05 * (reward - average)
    first = 0.3 + 0.3 * changes[0] + 0.01 * changes[0]
    second = 0.3 + 0.3 * changes[1] + 0.01 * sum(changes) + 0.05 * (changes[1] - changes[0])
    thresholds = [s["threshold"] for s in run([{"reward": r, "kl": 0.5, "entropy": 1.0} for r in rewards])]
    assert thresholds == pytest.approx([0.3, first, second], abs=1e-12)


@pytest.mark.parametrize("series", ["up", "down", "noise", "steps"])
def test_the_threshold_stays_in_its_band_and_follows_the_reward(series):
    noise = torch.randn(300, generator=torch.Generator().manual_seed(0)).mul(10).tolist()
    rewards = {
        "up": [0.1 * i for i in range(300)],
        "down": [-0.1 * i for i in range(300)],
        "noise": noise,
        "steps": [float(i // 100) for i in range(300)],
    }[series]
    thresholds = [s["threshold"] for s in run([{"reward": r, "kl": 0.5, "entropy": 1.0} for r in rewards])]
    assert all(0.1 <= t <= 0.6 for t in thresholds)
    assert thresholds[0] == 0.3
    # The average changes by 0.1 in each iteration in the end, and the sum of errors is held at ±1.
    if series in ("up", "down"):
        want = 0.3 + 0.3 * 0.099 + 0.01 if series == "up" else 0.3 - 0.3 * 0.101 - 0.01
        assert thresholds[-1] == pytest.approx(want, abs=1e-6)
    if series == "noise":
        assert (min(thresholds), max(thresholds)) == (0.1, 0.6)


def test_the_threshold_moves_the_penalty_and_the_penalty_the_loss():
    rising, level = (run([{"reward": slope * i, "kl": 0.5, "entropy": 1.0} for i in range(60)]) for slope in (0.1, 0.0))
    assert 0 < rising[-1]["slope"] < level[-1]["slope"]
    term = bind_algorithm(stage(), {}).settled(rising[-1]).loss_terms[0]
    assert term.coef == rising[-1]["slope"] > 0
    assert term.function.options["estimator"] == "k2"  # whose gradient is that of the KL
    constant = bind_algorithm(stage("symmetric"), {}).loss_terms[0]
    assert constant.coef == 0.05
