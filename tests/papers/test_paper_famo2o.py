"""FamO2O: weights of the family at each balance, and who learns from which loss.

Not shown: D4RL.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from learning.control.buffers.buffer import make_batch
from learning.control.losses.balances import weigh_advantages
from learning.control.losses.critics import compute_advantage, predict_action_values
from learning.control.networks.balanced_actor import BalancedActor
from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.stepping.spaces import Spaces
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import collect
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/famo2o.yaml").stages
ROWS, SPACES, SETTINGS = 6, Spaces(3, 2, (-1.0, -1.0), (1.0, 1.0)), NetworkSettings(hidden_sizes=[16])


@pytest.fixture
def algorithm():
    torch.manual_seed(0)
    return bind(STAGES["family"].loss, "loss")(Networks(SPACES, SETTINGS))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    columns = {"observation": torch.randn(ROWS, 3), "action": torch.rand(ROWS, 2) * 1.8 - 0.9}
    columns |= {"reward": torch.randn(ROWS, 1), "next_observation": torch.randn(ROWS, 3)}
    none = torch.zeros(ROWS, 1, dtype=torch.bool)
    return make_batch({**columns, "terminated": none, "truncated": none})


def ask(stage, name, batch, algorithm):
    """A term of a stage of the recipe."""
    bound = bind(STAGES[stage].loss_terms[name], f"loss_terms.{name}")
    return bound.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})


def list_trained(algorithm):
    """The networks that have a gradient."""
    trained = {n for n, p in algorithm.loss.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    return {".".join(name.split(".")[:2]) if name.startswith("actor") else name.split(".")[0] for name in trained}


def test_weights_at_an_advantage_of_one():
    weights = weigh_advantages(torch.ones(4), torch.tensor([[0.5], [3.0], [5.0], [0.0]]))
    assert weights.tolist() == pytest.approx([1.6487, 20.0855, 100.0, 1.0], abs=1e-4)


def test_a_balance_of_zero_is_cloning(batch, algorithm):
    algorithm.actor.get_buffer("range").copy_(torch.tensor([0.0, 1e-6]))
    torch.manual_seed(5)
    loss = ask("family_online", "loss_actor", batch, algorithm)
    chosen = algorithm.actor.choose(batch["observation"])
    policy = algorithm.actor.family.get_dist(algorithm.actor.condition(batch["observation"], chosen))
    assert loss.item() == pytest.approx(-policy.log_prob(batch["action"]).mean().item(), rel=1e-4)


def test_the_familys_loss_is_cloning_weighted_at_balances_drawn_evenly(batch, algorithm):
    torch.manual_seed(3)
    loss = ask("family", "loss_actor", batch, algorithm)
    torch.manual_seed(3)
    balance = 1 + 4 * torch.rand(ROWS, 1)
    advantage = compute_advantage(batch, algorithm.loss)
    total = 0.0
    for row in range(ROWS):
        weight = min(math.exp(balance[row, 0].item() * advantage[row].item()), 100)
        shown = torch.cat([batch["observation"][row], (balance[row] - 3) / 2])[None]
        policy = algorithm.actor.family.get_dist(TensorDict({"observation": shown}, [1]))
        total -= weight * policy.log_prob(batch["action"][row : row + 1]).item() / ROWS
    assert loss.item() == pytest.approx(total, rel=1e-4)


def test_each_loss_trains_its_own_network(batch, algorithm):
    ask("family", "loss_balance", batch, algorithm).backward()
    assert list_trained(algorithm) == {"actor_network_params.balance"}
    algorithm.loss.zero_grad()
    for stage in ("family", "family_online"):
        algorithm.loss.zero_grad()
        ask(stage, "loss_actor", batch, algorithm).backward()
        assert list_trained(algorithm) == {"actor_network_params.family"}
    algorithm.loss.zero_grad()
    losses = algorithm.loss(batch)
    sum(losses[name] for name in algorithm.terms).backward()
    assert list_trained(algorithm) == {"qvalue_network_params", "value_network_params"}


def test_the_balances_loss_is_minus_the_smaller_target_critic(batch, algorithm):
    for parameter in algorithm.loss.target_qvalue_network_params.values(True, True):
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    action = algorithm.actor(batch.select("observation"))["action"]
    with torch.no_grad():
        loc = algorithm.actor.family.get_dist_params(
            algorithm.actor.condition(batch["observation"], algorithm.actor.choose(batch["observation"]))
        )["loc"]
    values = predict_action_values(algorithm.loss, batch, loc.tanh(), target=True)
    loss = ask("family", "loss_balance", batch, algorithm)
    assert loss.item() == pytest.approx(-values.min(0).values.mean().item(), rel=1e-4)
    assert len(values) == 2
    assert action.shape == (ROWS, 2)


def test_steps_on_the_balances_loss_raise_the_value_of_its_actions(batch, algorithm):
    before = ask("family", "loss_balance", batch, algorithm).item()
    optimizer = torch.optim.Adam(algorithm.actor.balance.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        ask("family", "loss_balance", batch, algorithm).backward()
        optimizer.step()
    assert ask("family", "loss_balance", batch, algorithm).item() < before - 1e-4


def test_the_balance_is_chosen_for_each_state_within_the_range(algorithm):
    observation = 30 * torch.randn(200, 3)
    chosen = algorithm.actor.choose(observation)
    assert chosen.shape == (200, 1)
    assert chosen.std() > 0.1
    assert chosen.min() >= 1
    assert chosen.max() <= 5


def test_actions_depend_on_the_balance_and_the_policy_is_kept_with_its_range(batch, algorithm, tmp_path):
    actor, observation = algorithm.actor, batch["observation"]
    low, high = (actor.family.get_dist_params(actor.condition(observation, torch.full((ROWS, 1), b))) for b in (1.0, 5))
    assert (low["loc"] - high["loc"]).abs().min() > 1e-4
    wider = bind(STAGES["family"].loss.model_validate({"use": "balanced_iql", "lowest": 2.0, "highest": 9.0}), "loss")
    policy = ControlPolicy(SPACES, SETTINGS, "make_balanced_actor", wider(Networks(SPACES, SETTINGS)).actor)
    policy.save(tmp_path, {"none": torch.zeros(1)})
    kept = load_control_policy(tmp_path)
    assert isinstance(kept.actor, BalancedActor)
    assert kept.actor.get_buffer("range").tolist() == [2.0, 9.0]
    shown = observation.numpy()
    assert np.array_equal(kept.act(shown, explore=False), policy.act(shown, explore=False))


def test_a_range_without_width_is_refused():
    use = STAGES["family"].loss.model_validate({"use": "balanced_iql", "lowest": 3.0, "highest": 3.0})
    with pytest.raises(StepError, match="must be smaller than highest"):
        bind(use, "loss")(Networks(SPACES, SETTINGS))


def test_the_expert_acts_in_the_data_on_one_side_alone(tmp_path):
    stage = STAGES["data"].model_copy(update={"environment_steps": 400})
    context = Context({}, tmp_path, tmp_path / "checkpoints", seed=2)
    collect.run(stage, context)
    from learning.control.policies.acting import swing_up
    from learning.control.stepping.transitions import read_transitions

    data = read_transitions(tmp_path / "outputs" / "transitions")
    same = np.isclose(data.action, swing_up(data.observation, data.spaces)).all(1)
    left = data.observation[:, 1] < 0
    assert same[left].all()
    assert same[~left].mean() < 0.05
    assert 0.2 < left.mean() < 0.8


def test_the_arms_differ_in_the_family_alone():
    family, fixed = (STAGES[name].model_dump() for name in ("family", "fixed"))
    later, fixed_later = (STAGES[name].model_dump() for name in ("family_online", "fixed_online"))
    for ours, theirs in ((family, fixed), (later, fixed_later)):
        assert (ours.pop("algorithm"), theirs.pop("algorithm")) == ("balanced_iql", "iql")
        assert (ours.pop("loss"), theirs.pop("loss")) == ({"use": "balanced_iql"}, {"use": "iql"})
        assert theirs.pop("loss_terms") == {}
    terms, later_terms = family.pop("loss_terms"), later.pop("loss_terms")
    assert terms["loss_actor"].get("balances", "even") == "even"
    assert later_terms["loss_actor"]["balances"] == "chosen"
    assert terms["loss_balance"] == later_terms["loss_balance"]
    assert family == fixed
    assert (later.pop("model"), fixed_later.pop("model")) == ("family", "fixed")
    assert later == fixed_later
    assert (family["max_steps"], later["environment_steps"]) == (1200, 1000)
    assert later["data"] == family["data"] == ["data"]
