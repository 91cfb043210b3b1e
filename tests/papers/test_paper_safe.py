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
    assert float(combine(both)) == pytest.approx(math.log(1.5), abs=1e-12)
    assert 0.0 < float(combine(both)) < float(both.mean()) == pytest.approx(0.549, abs=1e-3)
    sharp = bind(block.combine.model_copy(update={"alpha": 1e-3}))
    assert float(sharp(both)) == pytest.approx(0.0, abs=1e-3)


def run(points):
    """Both controls over a series of iterations; what they remember goes through JSON."""
    algorithm, states, metrics = bind_algorithm(stage(), {}), {}, []
    for step, point in enumerate(points):
        metrics.append(regulate(algorithm, step, {"metrics": point, "states": states, "step": step}))
        states = json.loads(json.dumps(states))
    return metrics


@pytest.mark.parametrize(("entropy", "factor"), [(0.9, 2.0), (3.9, 0.5)])
def test_the_penalty_is_quadratic_and_gated_by_entropy(entropy, factor):
    (metrics,) = run([{"kl": 0.8, "entropy": entropy, "reward": 0.5}])
    assert metrics["threshold"] == 0.3
    assert metrics["penalty"] == pytest.approx(0.1 * 0.5**2 * factor, rel=1e-12)


def test_the_kl_is_a_moving_average():
    first, second = run([{"kl": 0.8, "entropy": 0.9}, {"kl": 0.0, "entropy": 0.9}])
    assert first["penalty"] == pytest.approx(0.1 * 0.5**2 * 2, rel=1e-12)
    assert second["penalty"] == pytest.approx(0.1 * (0.9 * 0.8 - 0.3) ** 2 * 2, rel=1e-12)


def test_below_the_threshold_there_is_no_penalty():
    assert [s["penalty"] for s in run([{"kl": 0.3, "entropy": 0.1}, {"kl": 0.0, "entropy": 9.0}])] == [0.0, 0.0]


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
    if series in ("up", "down"):
        assert thresholds[-1] == (0.6 if series == "up" else 0.1)


def test_the_threshold_moves_the_penalty_and_the_penalty_the_loss():
    rising = run([{"reward": 0.1 * i, "kl": 0.5, "entropy": 1.0} for i in range(60)])
    assert rising[-1]["penalty"] < rising[0]["penalty"]
    term = bind_algorithm(stage(), {}).settled(rising[0]).loss_terms[0]
    assert term.coef == rising[0]["penalty"] > 0
    constant = bind_algorithm(stage("symmetric"), {}).loss_terms[0]
    assert constant.coef == 0.05
