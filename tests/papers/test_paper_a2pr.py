"""A2PR: which action the policy is held near, where nothing holds it, and what the model of actions is fitted to.

Not shown: scores on D4RL.
"""

from pathlib import Path

import pytest
import torch

from learning.control.buffers.buffer import make_batch
from learning.control.losses.advantage_guidance import choose_better, value_states
from learning.control.losses.critics import predict_action_values
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/a2pr.yaml").stages
ROWS = 6


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    spaces = Spaces(3, 2, (-1.0, -1.0), (1.0, 1.0))
    return bind(STAGES["guided"].loss, "loss")(Networks(spaces, NetworkSettings(hidden_sizes=[16])))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    columns = {"observation": torch.randn(ROWS, 3), "action": torch.rand(ROWS, 2) * 2 - 1}
    columns |= {"reward": torch.randn(ROWS, 1), "next_observation": torch.randn(ROWS, 3)}
    ended = torch.tensor([[True], *[[False]] * (ROWS - 1)])
    return make_batch({**columns, "terminated": ended, "truncated": torch.zeros_like(ended)})


def ask(name, batch, algorithm):
    """A term of the recipe's guided arm."""
    bound = bind(STAGES["guided"].loss_terms[name], f"loss_terms.{name}")
    return bound.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})


def set_value(algorithm, value):
    """Make V(s) the same number everywhere."""
    for parameter in algorithm.loss.state_value.parameters():
        parameter.data.zero_()
    algorithm.loss.state_value.module[-1].bias.data.fill_(value)


def read_gradients(module):
    return [p.grad for p in module.parameters() if p.grad is not None and p.grad.abs().sum() > 0]


def test_the_target_is_the_made_action_unless_the_data_is_better():
    made, taken = torch.tensor([[0.3, -0.1]] * 4), torch.tensor([[0.1, 0.2]] * 4)
    of_made, of_taken = torch.tensor([2.0, 1.0, 1.5, -1.0]), torch.tensor([1.0, 2.0, 1.5, -2.0])
    target, counts = choose_better(made, of_made, taken, of_taken, torch.zeros(4))
    assert [round(x, 6) for x in target[:, 0].tolist()] == [0.3, 0.1, 0.3, 0.3]
    assert counts.tolist() == [True, True, True, False]


def test_an_advantage_of_zero_counts_for_the_made_action_alone():
    one = torch.zeros(1, 2)
    assert choose_better(one, torch.zeros(1), one, -torch.ones(1), torch.zeros(1))[1].item()
    assert not choose_better(one, -torch.ones(1), one, torch.zeros(1), torch.zeros(1))[1].item()


def compute_pull(batch, algorithm):
    """The actor's loss less −λQ with λ = 2.5 / mean |Q|: what holds the policy."""
    action = algorithm.actor(batch.select("observation"))["action"]
    value = predict_action_values(algorithm.loss, batch, action)[0]
    torch.manual_seed(2)
    loss = ask("loss_actor", batch, algorithm)
    return (loss + 2.5 * value.mean() / value.abs().mean()).item(), action


def test_nothing_holds_the_policy_where_neither_action_has_an_advantage(batch, algorithm):
    set_value(algorithm, 100.0)
    pull, action = compute_pull(batch, algorithm)
    assert pull == pytest.approx(0, abs=1e-6)
    assert (action - batch["action"]).square().mean() > 0.1  # TD3+BC's term is not 0 there


def test_with_advantages_everywhere_the_policy_is_held_near_the_better_action(batch, algorithm):
    set_value(algorithm, -100.0)
    pull, action = compute_pull(batch, algorithm)
    torch.manual_seed(2)
    made = algorithm.loss.action_model(batch["observation"], action)[0]
    values = [predict_action_values(algorithm.loss, batch, one)[0] for one in (made, batch["action"])]
    better = torch.stack([m if a >= b else t for m, t, a, b in zip(made, batch["action"], *values, strict=True)])
    assert pull == pytest.approx((action - better).square().mean().item(), abs=1e-6)
    assert 0 < sum(bool((b == t).all()) for b, t in zip(better, batch["action"], strict=True)) < ROWS


def test_the_actors_loss_trains_the_actor_alone(batch, algorithm):
    set_value(algorithm, -100.0)
    ask("loss_actor", batch, algorithm).backward()
    assert len(read_gradients(algorithm.actor)) == 4
    assert not read_gradients(algorithm.loss.action_model)
    assert not read_gradients(algorithm.loss.state_value)
    assert algorithm.loss.qvalue_network_params["module", "0", "weight"].grad is None


def test_rows_without_an_advantage_train_nothing_of_the_model(batch, algorithm):
    set_value(algorithm, 100.0)
    ask("loss_model", batch, algorithm).backward()
    assert not read_gradients(algorithm.loss.action_model)


def test_the_models_loss_is_the_evidence_bound_of_better_rows(batch, algorithm):
    value = predict_action_values(algorithm.loss, batch, batch["action"])[0]
    set_value(algorithm, value.median().item())
    better = value > value.median()
    assert 0 < better.sum() < ROWS
    torch.manual_seed(3)
    loss = ask("loss_model", batch, algorithm)
    torch.manual_seed(3)
    made, mean, spread = algorithm.loss.action_model(batch["observation"], batch["action"])
    posterior = torch.distributions.Normal(mean, spread.exp())
    divergence = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).mean(-1)
    rows = ((made - batch["action"]).square().mean(-1) + 0.5 * divergence)[better]
    assert loss.item() == pytest.approx(rows.sum().item() / ROWS, rel=1e-5)
    loss.backward()
    assert read_gradients(algorithm.loss.action_model)
    assert not read_gradients(algorithm.loss.state_value)


def test_the_state_value_follows_the_smallest_of_critics_and_targets(batch, algorithm):
    for parameter in algorithm.loss.target_qvalue_network_params.values(True, True):
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    bound = bind(STAGES["guided"].loss_terms["loss_value"], "loss_terms.loss_value")
    torch.manual_seed(4)
    loss = bound.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})
    torch.manual_seed(4)
    with torch.no_grad():
        action = algorithm.actor(batch["next"].select("observation"))["action"]
        action = (action + (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)).clamp(-1, 1)
        each = [predict_action_values(algorithm.loss, batch["next"], action, target=t) for t in (True, False)]
        smallest = torch.cat(each).min(0).values
    target = batch["next", "reward"][:, 0] + 0.99 * (~batch["next", "terminated"][:, 0]) * smallest
    expected = (value_states(algorithm.loss, batch) - target).square().mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (each[0] - each[1]).abs().min() > 1e-4
    assert {int(place) for place in torch.cat(each).argmin(0)} > {0}


def test_made_actions_lie_within_the_bounds():
    spaces = Spaces(1, 1, (-2.0,), (6.0,))
    torch.manual_seed(0)
    algorithm = bind(STAGES["guided"].loss, "loss")(Networks(spaces, NetworkSettings(hidden_sizes=[8])))
    made, mean, spread = algorithm.loss.action_model(torch.randn(500, 1), 100 * torch.randn(500, 1))
    assert made.min() >= -2
    assert made.max() <= 6
    assert mean.shape == spread.shape == (500, 2)


def test_the_arms_differ_in_the_guidance_alone():
    ours, plain = (STAGES[name].model_dump() for name in ("guided", "td3_bc"))
    assert (ours.pop("algorithm"), plain.pop("algorithm")) == ("guided_td3_bc", "td3_bc")
    assert (ours.pop("loss"), plain.pop("loss")) == ({"use": "guided_td3_bc"}, {"use": "td3_bc"})
    names = {name: term["use"] for name, term in ours.pop("loss_terms").items()}
    assert names == {
        "loss_actor": "toward_better",
        "loss_model": "likelihood_of_better",
        "loss_value": "value_of_policy",
    }
    assert plain.pop("loss_terms") == {}
    assert ours == plain
    assert ours["data"] == ["random", "good"]
    assert (STAGES["random"].policy.use, STAGES["good"].policy.use) == ("random", "swing_up")
    assert STAGES["random"].environment_steps == STAGES["good"].environment_steps
    assert dict(STAGES["report"].models) == {"td3_bc": "td3_bc", "guided": "guided"}
