"""f-DVL: the value losses of two divergences have the paper's values and slopes, where XQL's exponential explodes.

Not shown: D4RL; ReCOIL, the imitation objective from arbitrary data.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "dual-rl.yaml").stages
ARMS = ("chi2", "tv", "xql", "iql")
BOX = Spaces(3, 1, (-2.0,), (2.0,), (1,))


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    return bind(STAGES["chi2"].loss, "loss")(Networks(BOX, NetworkSettings(hidden_sizes=[8])))


def make_batch(count=1):
    ends = {name: torch.zeros(count, 1, dtype=torch.bool) for name in ("terminated", "done")}
    following = {"observation": torch.zeros(count, 3), "reward": torch.zeros(count, 1), **ends}
    batch = {"observation": torch.zeros(count, 3), "action": torch.zeros(count, 1)}
    return TensorDict({**batch, "next": TensorDict(following, [count])}, [count])


def find_output(params):
    """The bias of the last layer."""
    leaves = dict(params.items(True, True))
    return leaves[max(key for key in leaves if key[-1] == "bias")]


def set_values(algorithm, targets, value):
    """Make the two target critics and the value constants."""
    loss = algorithm.loss
    for params in (loss.target_qvalue_network_params, loss.qvalue_network_params, loss.value_network_params):
        for tensor in params.values(True, True):
            tensor.data.zero_()
    find_output(loss.target_qvalue_network_params).data.copy_(torch.tensor(targets)[:, None])
    find_output(loss.qvalue_network_params).data.fill_(1000.0)  # the trained critics are not those of x
    find_output(loss.value_network_params).data.fill_(value)


def compute(algorithm, arm, x):
    """The stage's value loss at Q − V = x, and its slope in x."""
    set_values(algorithm, (5.0 + x, 6.0 + x), 5.0)
    term = bind(STAGES[arm].loss_terms["loss_value"], "loss_terms.loss_value")
    loss = term.ask(0, {"batch": make_batch(), "loss": algorithm.loss})
    algorithm.loss.zero_grad()
    loss.backward()
    return loss.item(), -find_output(algorithm.loss.value_network_params).grad.item()


@pytest.mark.parametrize(
    ("arm", "x", "expected"),
    [
        ("tv", 1.0, 0.6),
        ("tv", -1.0, 0.2),
        ("chi2", 1.0, 0.8),
        ("chi2", -1.0, 0.2),
        ("chi2", -6.0, 3.6),  # f*(−6) = 3 > 0
        ("xql", 1.0, math.e - 2),
    ],
)
def test_the_value_losses_have_the_papers_values(algorithm, arm, x, expected):
    assert compute(algorithm, arm, x)[0] == pytest.approx(expected, rel=1e-5)


def test_slopes_are_bounded_by_the_divergence_and_explode_without(algorithm):
    assert compute(algorithm, "chi2", 10.0)[1] == pytest.approx(4.6, rel=1e-5)
    assert compute(algorithm, "tv", 10.0)[1] == pytest.approx(0.6, rel=1e-5)
    unbounded = STAGES["xql"].loss_terms["loss_value"].model_copy(update={"clip": None})
    set_values(algorithm, (15.0, 16.0), 5.0)
    bind(unbounded, "loss_terms.loss_value").ask(0, {"batch": make_batch(), "loss": algorithm.loss}).backward()
    assert -find_output(algorithm.loss.value_network_params).grad.item() == pytest.approx(22025.5, rel=1e-4)
    assert compute(algorithm, "xql", 10.0) == pytest.approx((math.exp(7) - 8, 0.0), rel=1e-5)


def test_a_temperature_divides_the_advantage_of_xql(algorithm):
    use = STAGES["xql"].loss_terms["loss_value"].model_copy(update={"temperature": 2.0})
    set_values(algorithm, (6.0, 7.0), 5.0)
    loss = bind(use, "loss_terms.loss_value").ask(0, {"batch": make_batch(), "loss": algorithm.loss})
    assert loss.item() == pytest.approx(math.exp(0.5) - 1.5, rel=1e-5)


def test_actions_are_cloned_with_the_exponential_of_three_advantages(algorithm):
    losses = []
    for x in (0.0, 0.5):
        set_values(algorithm, (5.0 + x, 6.0 + x), 5.0)
        losses.append(algorithm.loss(make_batch())["loss_actor"].item())
    assert losses[1] / losses[0] == pytest.approx(math.exp(1.5), rel=1e-5)


def test_the_value_loss_trains_the_value_alone(algorithm):
    compute(algorithm, "chi2", 1.0)
    loss = algorithm.loss
    for params in (loss.qvalue_network_params, loss.actor_network_params, loss.target_qvalue_network_params):
        assert all(t.grad is None or not t.grad.any() for t in params.values(True, True))


@pytest.mark.parametrize("arm", ["tv", "chi2"])
def test_the_value_that_minimises_the_loss_lies_between_mean_and_maximum(algorithm, arm):
    """For Q in {0, 1} and small x: TV's slope is λ·1(x > 0) − (1 − λ), so that V is the λ-quantile's end, 1."""
    term = bind(STAGES[arm].loss_terms["loss_value"], "loss_terms.loss_value")
    found = {}
    for value in np.linspace(-0.5, 1.5, 81):
        total = 0.0
        for q in (0.0, 1.0):
            set_values(algorithm, (q, q), float(value))
            total += term.ask(0, {"batch": make_batch(), "loss": algorithm.loss}).item()
        found[round(float(value), 3)] = total
    weight = STAGES[arm].loss_terms["loss_value"].weight
    conjugate = {"tv": lambda x: x, "chi2": lambda x: x + x * x / 4}[arm]
    by_hand = {v: sum(weight * max(conjugate(q - v), 0) - (1 - weight) * (q - v) for q in (0.0, 1.0)) for v in found}
    assert found == pytest.approx(by_hand, abs=1e-5)
    assert 0.5 < min(found, key=found.__getitem__) <= 1.0


def test_the_arms_differ_in_the_value_loss_alone_and_there_is_no_discriminator(algorithm):
    stages = {name: STAGES[name].model_dump() for name in ARMS}
    losses = {name: stage.pop("loss_terms") for name, stage in stages.items()}
    assert stages["chi2"] == stages["tv"] == stages["xql"] == stages["iql"]
    assert losses["iql"] == {}
    assert {name: losses[name]["loss_value"]["use"] for name in ARMS[:3]} == {
        "chi2": "f_dvl",
        "tv": "f_dvl",
        "xql": "gumbel",
    }
    assert stages["chi2"]["loss"] == {"use": "iql"}
    assert stages["chi2"]["data"] == ["random", "good"]
    networks = {name.partition("_params")[0] for name, p in algorithm.loss.named_parameters() if p.requires_grad}
    assert networks == {"actor_network", "qvalue_network", "value_network"}
    assert dict(STAGES["report"].models) == {name: name for name in ("iql", "xql", "tv", "chi2")}
