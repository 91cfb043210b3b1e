"""SAC: targets take the smaller of two critics and add the entropy, which the temperature holds at its target.

Not shown: MuJoCo's tasks and real robots.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Uniform

from learning.control.buffers import buffer
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.lookup import bind
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "sac.yaml").stages
SAC, FIXED = STAGES["sac"], STAGES["fixed"]


class Flat(Independent):
    """A uniform distribution over the box: its log-density is minus the logarithm of the box's volume."""

    def __init__(self, loc, scale, low, high):
        super().__init__(Uniform(low + 0 * loc, high + 0 * scale, validate_args=False), 1)


@pytest.fixture
def build(monkeypatch):
    """Make a stage's loss whose policy has a given log-density everywhere, and whose critics are constants."""

    def build(stage, log_density, targets, now=(0.0, 0.0)):
        monkeypatch.setattr("torchrl.modules.TanhNormal", Flat)
        half = math.exp(-log_density) / 2
        algorithm = bind(stage.loss, "loss")(Networks(Spaces(3, 1, (-half,), (half,), (1,)), stage.networks))
        set_constants(algorithm.loss.qvalue_network_params, now)
        set_constants(algorithm.loss.target_qvalue_network_params, targets)
        return algorithm

    return build


def set_constants(params, values):
    """Make each of several critics give one value for all inputs."""
    leaves = dict(params.items(True, True))
    last = max(key[-2] for key in leaves)
    for key, tensor in leaves.items():
        tensor.data.zero_()
        if key[-2:] == (last, "bias"):
            tensor.data.copy_(torch.tensor(values[: len(tensor)])[:, None])


def make_batch(terminated=False, truncated=False):
    """One step with reward 1, as the buffer gives it."""
    steps = {"observation": torch.zeros(1, 3), "action": torch.zeros(1, 1), "next_observation": torch.zeros(1, 3)}
    ends = {"terminated": torch.tensor([[terminated]]), "truncated": torch.tensor([[truncated]])}
    return buffer.make_batch({**steps, **ends, "reward": torch.ones(1, 1)})


@pytest.mark.parametrize(
    ("targets", "ends", "expected"),
    [
        ((3.0, 2.0), {}, 3.178),  # 1 + 0.99 (min(3, 2) + 0.2)
        ((3.0, 9.0), {}, 4.168),  # with the first critic alone
        ((2.0, 3.0), {"truncated": True}, 3.178),
        ((3.0, 2.0), {"terminated": True}, 1.0),
    ],
)
def test_the_target_is_the_smaller_critic_plus_the_entropy(build, targets, ends, expected):
    algorithm = build(SAC, -1.0, targets)
    algorithm.loss.log_alpha.data.fill_(math.log(0.2))
    loss = algorithm.loss(make_batch(**ends))["loss_qvalue"]
    assert loss.item() == pytest.approx(2 * expected**2, rel=1e-4)  # two critics, both at 0


def test_targets_follow_the_critics_slowly(build):
    algorithm = build(SAC, -1.0, (1.0, 1.0), now=(3.0, 5.0))
    algorithm.update_targets()
    leaves = dict(algorithm.loss.target_qvalue_network_params.items(True, True))
    bias = leaves[max(key for key in leaves if key[-1] == "bias")]
    assert bias[:, 0].tolist() == pytest.approx([1.01, 1.02])  # 0.005 of the way


def train_once(algorithm, batch, lr=1e-2):
    """Take a plain gradient step on the sum of the terms, and return the temperature before and after it."""
    parameters = [p for p in algorithm.loss.parameters() if p.requires_grad]
    before, terms = algorithm.loss.log_alpha.exp().item(), algorithm.loss(batch)
    torch.stack([terms[name] for name in algorithm.terms if name in terms.keys()]).sum().backward()  # noqa: SIM118
    for parameter in parameters:
        parameter.data -= lr * (0 if parameter.grad is None else parameter.grad)
    return before, algorithm.loss.log_alpha.exp().item()


@pytest.mark.parametrize(("log_density", "step"), [(2.0, +0.01), (-2.0, -0.03)])
def test_one_dual_step_moves_the_temperature_towards_the_target_entropy(build, log_density, step):
    """The entropy is −log π; its target is −1: at log π = 2 it is too low, at −2 too high by 3."""
    before, after = train_once(build(SAC, log_density, (0.0, 0.0)), make_batch())
    assert math.log(after) - math.log(before) == pytest.approx(step, rel=1e-4)
    before, after = train_once(build(FIXED, log_density, (0.0, 0.0)), make_batch())
    assert before == after == pytest.approx(0.2)


def test_the_actor_maximises_the_smaller_critic_and_its_entropy(build):
    terms = build(SAC, -1.0, (0.0, 0.0), now=(3.0, 2.0)).loss(make_batch())
    assert terms["loss_actor"].item() == pytest.approx(1.0 * -1.0 - 2.0)  # α log π − min Q, α = 1


def test_the_gradient_of_the_actor_goes_through_its_sample():
    """For critics 5a and a = 2 tanh(μ + σε) it is −10 E[1 − tanh²(μ + σε)] for μ: by quadrature, and by samples."""
    torch.manual_seed(0)
    algorithm = bind(SAC.loss, "loss")(Networks(Spaces(3, 1, (-2.0,), (2.0,), (1,)), SAC.networks))
    algorithm.loss.log_alpha.data.fill_(-20.0)
    set_constants(algorithm.loss.qvalue_network_params, (-50.0, -50.0))
    leaves = {key[-2:]: tensor.data for key, tensor in algorithm.loss.qvalue_network_params.items(True, True)}
    layers = sorted({layer for layer, _ in leaves}, key=int)
    for layer, (column, weight) in zip(layers, [(3, 1.0), (0, 1.0), (0, 5.0)], strict=True):
        leaves[layer, "weight"][:, 0, column] = weight
    leaves[layers[0], "bias"][:, 0] = 10.0  # the ReLU of a + 10 is a + 10
    batch = make_batch().expand(4096).clone()
    algorithm.loss(batch)["loss_actor"].backward()
    measured = list(algorithm.loss.actor_network_params.parameters())[-2:]
    bias = next(p.grad for p in measured if p.ndim == 1)
    actor = algorithm.actor.get_dist(batch[:1].select("observation"))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    reached = np.tanh(actor.loc.item() + actor.scale.item() * nodes)
    expected = -10 * ((1 - reached**2) * weights).sum() / weights.sum()
    assert bias[0].item() == pytest.approx(expected, rel=0.05)


def test_the_comparators_take_as_many_steps_and_differ_in_the_method():
    trained = {name: STAGES[name] for name in ("sac", "fixed", "td3", "ppo")}
    assert {stage.environment_steps for stage in trained.values()} == {5120}
    assert {name: stage.loss.use for name, stage in trained.items()} == {
        **dict.fromkeys(("sac", "fixed"), "sac"),
        "td3": "td3",
        "ppo": "ppo",
    }
    ours, theirs = (stage.model_dump() for stage in (SAC, FIXED))
    assert ours.pop("loss") == {"use": "sac"}
    assert theirs.pop("loss") == {"use": "sac", "alpha": 0.2, "fixed_alpha": True}
    assert ours == theirs
    assert dict(STAGES["report"].models) == {"ppo": "ppo", "td3": "td3", "fixed": "fixed", "sac": "sac"}
