"""H2O: the ratio of dynamics from two discriminators, the weights of simulated steps, and the penalty on their values.

Not shown: a real robot, D4RL.
"""

import math
from pathlib import Path

import pytest
import torch

from learning.control.buffers.buffer import Buffer, make_batch
from learning.control.losses.critics import predict_action_values
from learning.control.losses.dynamics_gap import find_log_ratio, measure_gap, split_steps, weigh_values
from learning.control.losses.imitation import value_actions
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Worlds
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/h2o.yaml").stages
ROWS = 8
SPACES = Spaces(3, 2, (-1.0, -1.0), (1.0, 1.0))


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    return bind(STAGES["hybrid"].loss, "loss")(Networks(SPACES, NetworkSettings(hidden_sizes=[16])))


def make_columns():
    columns = {"observation": torch.randn(ROWS, 3), "action": torch.rand(ROWS, 2) * 1.8 - 0.9}
    columns |= {"reward": torch.randn(ROWS, 1), "next_observation": torch.randn(ROWS, 3)}
    ended = torch.tensor([[True], [False]] * (ROWS // 2))
    return {**columns, "terminated": ended, "truncated": torch.zeros_like(ended)}


@pytest.fixture
def batch():
    torch.manual_seed(1)
    made = make_batch(make_columns())
    made["is_real"] = torch.arange(ROWS) < 4
    return made


def ask(name, batch, algorithm):
    """A term of the recipe's hybrid arm."""
    bound = bind(STAGES["hybrid"].loss_terms[name], f"loss_terms.{name}")
    return bound.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})


class Fixed(torch.nn.Module):
    """Gives the logits of two probabilities."""

    def __init__(self, with_next, without) -> None:
        super().__init__()
        self.logits = [torch.logit(torch.as_tensor(p, dtype=torch.float32)) for p in (without, with_next)]

    def forward(self, observation, action, following):
        return tuple(logit.expand(observation.shape[:-1]) for logit in self.logits)


def test_the_ratio_of_dynamics_is_that_of_the_odds(batch, algorithm):
    for with_next, ratio in ((0.2, 0.25), (0.8, 4.0), (0.5, 1.0)):
        algorithm.loss.real_or_simulated = Fixed(with_next, 0.5)
        found = find_log_ratio(algorithm.loss, batch, batch["next", "observation"]).exp()
        assert found.tolist() == pytest.approx([ratio] * ROWS, rel=1e-5)
    algorithm.loss.real_or_simulated = Fixed(0.3, 0.6)
    found = find_log_ratio(algorithm.loss, batch, batch["next", "observation"]).exp()
    assert found[0].item() == pytest.approx(0.3 * 0.4 / (0.7 * 0.6), rel=1e-5)


def test_the_penalty_pulls_at_simulated_values_by_their_share_in_the_gap():
    for gaps, shares in (((3.0, 1.0), (0.75, 0.25)), ((2.0, 2.0), (0.5, 0.5))):
        values = torch.zeros(1, 2, requires_grad=True)
        penalty = weigh_values(values, torch.tensor(gaps))
        assert penalty.item() == pytest.approx(0.0, abs=1e-6)
        penalty.sum().backward()
        assert values.grad[0].tolist() == pytest.approx(shares)
    values = torch.tensor([[1.0, 2.0]])
    expected = math.log(0.75 * math.e + 0.25 * math.e**2)
    assert weigh_values(values, torch.tensor([3.0, 1.0])).item() == pytest.approx(expected, rel=1e-6)


def test_the_penalty_is_the_weighted_sum_less_the_mean_of_real_values(batch, algorithm):
    torch.manual_seed(2)
    penalty = ask("loss_penalty", batch, algorithm)
    torch.manual_seed(2)
    real, simulated = split_steps(batch, algorithm.loss)
    gap = measure_gap(algorithm.loss, real, simulated, 10, 1.0)
    expected = sum(
        (torch.log((gap / gap.sum() * of_simulated.exp()).sum()) - of_real.mean()).item()
        for of_simulated, of_real in zip(
            value_actions(algorithm.loss, simulated, simulated["action"]),
            value_actions(algorithm.loss, real, real["action"]),
            strict=True,
        )
    )
    assert penalty.item() == pytest.approx(expected, rel=1e-4)
    assert STAGES["hybrid"].loss_terms["loss_penalty"].coef == 0.01


def test_the_gap_is_the_mean_log_ratio_near_the_simulated_step_within_bounds(batch, algorithm):
    real, simulated = split_steps(batch, algorithm.loss)
    algorithm.loss.real_or_simulated = Fixed(0.2, 0.5)
    assert measure_gap(algorithm.loss, real, simulated, 3, 1.0).tolist() == pytest.approx([math.log(4)] * 4)
    algorithm.loss.real_or_simulated = Fixed(0.8, 0.5)
    assert measure_gap(algorithm.loss, real, simulated, 3, 1.0).tolist() == pytest.approx([1e-6] * 4)
    seen = []

    class Watched(Fixed):
        def forward(self, observation, action, following):
            seen.append(following)
            return super().forward(observation, action, following)

    algorithm.loss.real_or_simulated = Watched(0.2, 0.5)
    measure_gap(algorithm.loss, real, simulated, 4000, 0.5)
    deviation = (seen[0] - simulated["next", "observation"]).std((0, 1))
    assert deviation.tolist() == pytest.approx((0.5 * real["observation"].std(0, correction=0)).tolist(), rel=0.05)


def compute_errors(batch, algorithm):
    """Squared errors (C, B) of all rows, with the next actions drawn as the term draws them."""
    errors = []
    for part in split_steps(batch, algorithm.loss):
        following = part["next"]
        action = algorithm.actor.get_dist(following.select("observation")).sample()
        value = predict_action_values(algorithm.loss, following, action, target=True).min(0).values
        target = following["reward"][:, 0] + 0.99 * (~following["terminated"][:, 0]) * value
        errors.append((predict_action_values(algorithm.loss, part, part["action"]) - target).square())
    return errors


@pytest.mark.parametrize(("with_next", "weight"), [(0.2, 0.25), (0.8, 1.0), (1e-9, 1e-5)])
def test_real_errors_count_whole_and_simulated_ones_by_the_ratio_at_most_one(batch, algorithm, with_next, weight):
    algorithm.loss.real_or_simulated = Fixed(with_next, 0.5)
    for parameter in algorithm.loss.target_qvalue_network_params.values(True, True):
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    torch.manual_seed(3)
    loss = ask("loss_qvalue", batch, algorithm)
    torch.manual_seed(3)
    real, simulated = compute_errors(batch, algorithm)
    expected = real.mean(1).sum() + weight * simulated.mean(1).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def list_trained(algorithm):
    return {n.split(".")[0] for n, p in algorithm.loss.named_parameters() if p.grad is not None and p.grad.any()}


def test_each_term_trains_its_own_networks(batch, algorithm):
    for name, trained in (
        ("loss_qvalue", "qvalue_network_params"),
        ("loss_penalty", "qvalue_network_params"),
        ("loss_discriminators", "real_or_simulated"),
    ):
        algorithm.loss.zero_grad()
        ask(name, batch, algorithm).backward()
        assert list_trained(algorithm) == {trained}


def test_the_discriminators_learn_the_ratio_of_two_worlds(algorithm):
    """s' − a is around 0 in the real world, around 1 in the simulator: a known ratio of Gaussians."""
    torch.manual_seed(0)
    spaces = Spaces(1, 1, (-1.0,), (1.0,))
    loss = bind(STAGES["hybrid"].loss, "loss")(Networks(spaces, NetworkSettings(hidden_sizes=[32]))).loss
    optimizer = torch.optim.Adam(loss.real_or_simulated.parameters(), lr=0.01)
    term = bind(STAGES["hybrid"].loss_terms["loss_discriminators"], "loss_terms.loss_discriminators")
    is_real = torch.arange(512) < 256

    def draw():
        action = torch.rand(512, 1) * 2 - 1
        columns = {"observation": torch.zeros(512, 1), "action": action, "reward": torch.zeros(512, 1)}
        columns["next_observation"] = action + (~is_real[:, None]).float() + torch.randn(512, 1)
        none = torch.zeros(512, 1, dtype=torch.bool)
        return make_batch({**columns, "terminated": none, "truncated": none}).set("is_real", is_real)

    for _ in range(300):
        optimizer.zero_grad()
        term.ask(0, {"batch": draw(), "loss": loss, "actor": None}).backward()
        optimizer.step()
    shown = draw()
    away = (shown["next", "observation"] - shown["action"])[:, 0]
    expected = ((away - 1).square() - away.square()) / 2
    found = find_log_ratio(loss, shown, shown["next", "observation"])
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.97
    assert (found - expected).abs().mean() < 0.25


def test_batches_are_half_real_and_half_simulated(algorithm):
    parts = [Buffer(ROWS, SPACES) for _ in range(2)]
    for number, part in enumerate(parts):
        part.columns["reward"].fill_(number)
        part.added = ROWS
    drawn = algorithm.draw(parts, 20)
    assert drawn["next", "reward"][:, 0].tolist() == [0.0] * 10 + [1.0] * 10
    assert drawn["is_real"].tolist() == [True] * 10 + [False] * 10
    with pytest.raises(StepError, match="real steps as `data`"):
        algorithm.draw(parts[:1], 20)


def test_the_simulator_pulls_harder_than_the_real_world():
    envs = {name: STAGES[name].env for name in ("hybrid", "mixed", "simulated", "offline", "real", "report")}
    gravity = {}
    for name, use in envs.items():
        worlds = Worlds(bind(use, "env"), 1, 0, "test")
        gravity[name] = worlds.worlds[0].unwrapped.g
        worlds.close()
    assert gravity == {"hybrid": 15, "mixed": 15, "simulated": 15, "offline": 10, "real": 10, "report": 10}


def test_the_arms_differ_in_the_correction_or_the_data():
    hybrid, mixed, alone = (STAGES[name].model_dump() for name in ("hybrid", "mixed", "simulated"))
    assert (hybrid.pop("algorithm"), mixed.pop("algorithm")) == ("gap_aware_sac", "sac")
    assert (hybrid.pop("loss"), mixed["loss"]) == ({"use": "gap_aware_sac"}, {"use": "sac"})
    names = {name: term["use"] for name, term in hybrid.pop("loss_terms").items()}
    assert names == {"loss_qvalue": "gap_corrected", "loss_penalty": "gap_penalty", "loss_discriminators": "tell_apart"}
    assert (hybrid.pop("data_share"), mixed.pop("data_share")) == (None, 0.5)
    assert mixed.pop("loss_terms") == {}
    assert mixed["data"] == hybrid["data"] == STAGES["offline"].data == ["real"]
    assert alone["data"] == []
    assert mixed["environment_steps"] == alone["environment_steps"] == 2500
    mixed.pop("loss")
    assert hybrid == mixed
