"""Losses of control against the formulas of the papers, written here again in plain torch."""

import math

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.nn.functional import logsigmoid, mse_loss

from learning.control.losses import standard as losses
from learning.control.losses.terms import advantage_weighted, cloning
from learning.control.networks.build import Networks
from learning.control.policies.policy import act
from learning.control.stepping.spaces import Spaces
from schemas.control import NetworkSettings
from schemas.errors import StepError

BOX, CHOICES = Spaces(3, 2, (-2.0, -1.0), (2.0, 1.0), (2,)), Spaces(4, 3)
B = 32


def make(name, spaces, **options):
    torch.manual_seed(0)
    algorithm = getattr(losses, name)(Networks(spaces, NetworkSettings(hidden_sizes=[16])), **options)
    for target in (p for n, p in algorithm.loss.named_buffers() if n.startswith("target_")):
        if target.is_floating_point():
            target.add_(torch.randn(target.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return algorithm


def make_batch(spaces):
    g = torch.Generator().manual_seed(2)
    low, high = torch.tensor(spaces.low), torch.tensor(spaces.high)
    action = (
        torch.randint(spaces.actions, (B,), generator=g)
        if spaces.is_discrete
        else low + (high - low) * torch.rand(B, spaces.actions, generator=g)
    )
    done = torch.rand(B, 1, generator=g) < 0.3
    following = {
        "observation": torch.randn(B, spaces.observations, generator=g),
        "reward": torch.randn(B, 1, generator=g),
        "terminated": done,
        "done": done,
    }
    batch = {"observation": torch.randn(B, spaces.observations, generator=g), "action": action}
    return TensorDict({**batch, "next": TensorDict(following, [B])}, [B])


def test_dqn_is_double_q_learning():
    algorithm, batch = make("dqn", CHOICES, gamma=0.9), make_batch(CHOICES)
    loss, following = algorithm.loss, batch["next"]
    now, target = loss.value_network_params, loss.target_value_network_params
    q = net(now, batch["observation"])
    chosen = net(now, following["observation"]).argmax(-1)
    y = (
        following["reward"][:, 0]
        + 0.9
        * (~following["terminated"][:, 0])
        * net(target, following["observation"]).gather(1, chosen[:, None])[:, 0]
    )
    expected = mse_loss(q.gather(1, batch["action"][:, None])[:, 0], y)
    assert loss(batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def net(params, inputs):
    """One hidden layer with ReLU, from the parameters of a module of TorchRL."""
    leaves = {key[-2:]: value for key, value in params.items(True, True)}
    first, last = sorted({key[0] for key in leaves}, key=int)
    hidden = torch.relu(inputs @ leaves[first, "weight"].mT + leaves[first, "bias"].unsqueeze(-2))
    return hidden @ leaves[last, "weight"].mT + leaves[last, "bias"].unsqueeze(-2)


def values(params, batch, key="action"):
    """Values (2, B) of two critics."""
    return net(params, torch.cat([batch["observation"], batch[key]], -1)).squeeze(-1)


def test_the_soft_target_takes_the_smaller_of_two_critics_and_adds_the_entropy():
    """r = 1, γ = 0.99, targets 3 and 2, α = 0.2, log π = −1: 1 + 0.99 (2 + 0.2) = 3.178."""
    algorithm = make("sac", BOX, gamma=0.99, alpha=0.2)
    loss, batch = algorithm.loss, make_batch(BOX)
    torch.manual_seed(5)
    with torch.no_grad():
        distribution = algorithm.actor.get_dist(batch["next"])
        action = distribution.rsample()
        lp = distribution.log_prob(action)
    moved = batch["next"].clone()
    moved["action"] = action
    soft = values(loss.target_qvalue_network_params, moved).min(0).values - 0.2 * lp
    y = batch["next", "reward"][:, 0] + 0.99 * (~batch["next", "terminated"][:, 0]) * soft
    expected = (values(loss.qvalue_network_params, batch) - y).square().mean(1).sum()
    torch.manual_seed(5)
    value = loss.qvalue_v2_loss(batch)[0].mean()
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)
    assert 1 + 0.99 * (min(3, 2) - 0.2 * -1) == pytest.approx(3.178)


@pytest.mark.parametrize(("lp", "rises"), [(2.0, True), (-2.0, False)])
def test_the_temperature_rises_where_the_policy_is_surer_than_the_target(lp, rises):
    loss = make("sac", BOX, target_entropy=-1.0).loss
    loss.alpha_loss(torch.full((B,), lp)).mean().backward()
    assert (loss.log_alpha.grad.item() < 0) == rises


def test_a_fixed_temperature_is_no_parameter():
    names = dict(make("sac", BOX, fixed_alpha=True).loss.named_parameters())
    assert "log_alpha" not in names
    assert len(names) > 0


def test_td3_bc_weights_the_value_by_its_size_and_clones():
    algorithm, batch = make("td3_bc", BOX, alpha=2.5), make_batch(BOX)
    loss = algorithm.loss
    acted = batch.clone()
    acted["action"] = algorithm.actor(batch.select("observation"))["action"]
    q = values(loss.qvalue_network_params, acted)[0]
    expected = -(2.5 / q.abs().mean().detach()) * q.mean() + mse_loss(acted["action"], batch["action"])
    assert loss(batch)["loss_actor"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_iql_regresses_an_expectile_and_clones_what_was_better():
    algorithm, batch = make("iql", BOX, gamma=0.9, expectile=0.8, temperature=3.0), make_batch(BOX)
    loss, following = algorithm.loss, batch["next"]
    q = values(loss.target_qvalue_network_params, batch).min(0).values
    v = net(loss.value_network_params, batch["observation"]).squeeze(-1)
    u = q - v
    terms = loss(batch)
    assert terms["loss_value"].item() == pytest.approx(
        (torch.where(u > 0, 0.8, 0.2) * u.square()).mean().item(), rel=1e-5
    )
    weight = (3.0 * u).exp().clamp(max=100)
    cloned = -(weight * algorithm.actor.get_dist(batch).log_prob(batch["action"])).mean()
    assert terms["loss_actor"].item() == pytest.approx(cloned.item(), rel=1e-4)
    y = following["reward"][:, 0] + 0.9 * (~following["terminated"][:, 0]) * net(
        loss.target_value_network_params if hasattr(loss, "target_value_network_params") else loss.value_network_params,
        following["observation"],
    ).squeeze(-1)
    expected = (values(loss.qvalue_network_params, batch) - y).square().mean(1).sum()
    assert terms["loss_qvalue"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_ppo_clips_the_ratio_at_both_bounds():
    algorithm, batch = make("ppo", CHOICES, clip_epsilon=0.2), make_batch(CHOICES)
    lp = algorithm.actor.get_dist(batch).log_prob(batch["action"]).detach()
    shift = torch.linspace(-1, 1, B)
    advantage = torch.randn(B, 1, generator=torch.Generator().manual_seed(3))
    batch["action_log_prob"], batch["advantage"] = lp - shift, advantage
    batch["value_target"] = torch.zeros(B, 1)
    ratio = shift.exp()
    a = (advantage[:, 0] - advantage.mean()) / advantage.std()
    expected = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    terms = algorithm.loss(batch)
    assert terms["loss_objective"].item() == pytest.approx(expected.item(), rel=1e-4)
    value = net(algorithm.loss.critic_network_params, batch["observation"]).squeeze(-1)
    assert terms["loss_critic"].item() == pytest.approx(0.5 * value.square().mean().item(), rel=1e-4)


def test_generalised_advantages_are_discounted_sums_of_errors():
    """One episode of three steps that ends: A_t = Σ (γλ)^k δ_{t+k}."""
    algorithm = make("ppo", CHOICES, gamma=0.9, lmbda=0.8)
    g = torch.Generator().manual_seed(0)
    observation, after = torch.randn(1, 3, 4, generator=g), torch.randn(1, 3, 4, generator=g)
    after[:, :2] = observation[:, 1:]
    done = torch.tensor([[[False], [False], [True]]])
    reward = torch.tensor([[[0.0], [1.0], [2.0]]])
    following = {"observation": after, "reward": reward, "done": done, "terminated": done}
    batch = TensorDict({"observation": observation, "next": TensorDict(following, [1, 3])}, [1, 3])
    with torch.no_grad():
        algorithm.advantage(batch)
        critic = algorithm.loss.critic_network_params
        v, w = net(critic, observation)[0, :, 0], net(critic, after)[0, :, 0]
    delta = [reward[0, t, 0] + 0.9 * w[t] * (t < 2) - v[t] for t in range(3)]
    expected = [sum(0.72**k * delta[t + k] for k in range(3 - t)) for t in range(3)]
    assert batch["advantage"][0, :, 0].tolist() == pytest.approx([float(a) for a in expected], abs=1e-6)


@pytest.mark.parametrize("spaces", [BOX, CHOICES], ids=["box", "choices"])
def test_cloning_is_the_likelihood_of_the_datas_actions(spaces):
    algorithm, batch = make("bc", spaces), make_batch(spaces)
    distribution = algorithm.actor.get_dist(batch)
    expected = -distribution.log_prob(batch["action"]).mean().item()
    assert algorithm.loss(batch)["loss_bc"].item() == pytest.approx(expected, rel=1e-6)
    assert cloning(batch, algorithm.actor).item() == pytest.approx(expected, rel=1e-6)


def test_cloning_of_one_action_is_a_squared_error():
    algorithm, batch = make("bc", BOX, stochastic=False), make_batch(BOX)
    expected = mse_loss(algorithm.actor(batch.select("observation"))["action"], batch["action"]).item()
    assert algorithm.loss(batch)["loss_bc"].item() == pytest.approx(expected, rel=1e-6)
    assert cloning(batch, algorithm.actor).item() == pytest.approx(expected, rel=1e-6)


def test_a_squashed_gaussian_has_the_density_of_the_change_of_variables():
    algorithm, batch = make("sac", BOX), make_batch(BOX)
    distribution = algorithm.actor.get_dist(batch)
    action = batch["action"] * 0.9
    out = algorithm.actor.module[0](batch.select("observation"))
    half = torch.tensor([2.0, 1.0])
    u = torch.atanh(action / half)
    normal = torch.distributions.Normal(out["loc"], out["scale"]).log_prob(u)
    slope = half.log() + 2 * (math.log(2) + logsigmoid(2 * u) - u)  # log of d tanh(u) / du, times the half width
    expected = (normal - slope).sum(-1)
    assert torch.allclose(distribution.log_prob(action), expected, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "spaces"), [("dqn", BOX), ("td3", CHOICES), ("td3_bc", CHOICES), ("iql", CHOICES), ("cql", CHOICES)]
)
def test_a_loss_for_other_actions_is_refused(name, spaces):
    with pytest.raises(StepError, match=f"loss {name} needs"):
        make(name, spaces)


@pytest.mark.parametrize("name", ["sac", "td3", "iql", "bc", "ppo"])
def test_without_exploration_the_same_observation_gives_the_same_action_within_bounds(name):
    actor = make(name, BOX).actor
    observation = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 10
    first, second = (act(actor, observation, explore=False) for _ in range(2))
    assert np.array_equal(first, second)
    assert (np.abs(first) <= np.array([2.0, 1.0]) + 1e-6).all()


def test_every_term_trains_its_own_networks():
    """The actor's term leaves the critics without a gradient, and theirs the actor."""
    algorithm, batch = make("sac", BOX), make_batch(BOX)
    for term, own in (("loss_actor", "actor_network"), ("loss_qvalue", "qvalue_network")):
        algorithm.loss.zero_grad()
        algorithm.loss(batch)[term].backward()
        moved = {
            n.partition("_params")[0]
            for n, p in algorithm.loss.named_parameters()
            if p.grad is not None and p.grad.abs().sum() > 0
        }
        assert moved == {own}


def test_redq_takes_the_smallest_of_a_random_subset_and_the_actor_the_mean():
    """Of five critics two, drawn by torch.randperm, make the target; all five are fitted to it."""
    algorithm = make("redq", BOX, gamma=0.9, num_critics=5, subset=2, alpha=0.3, fixed_alpha=True)
    loss, batch = algorithm.loss, make_batch(BOX)
    torch.manual_seed(5)
    terms = loss(batch)
    torch.manual_seed(5)
    with torch.no_grad():
        chosen = torch.randperm(5)[:2]
        shown = torch.stack([batch.select("observation"), batch["next"].select("observation")])
        distribution = algorithm.actor.get_dist(shown)
        action = distribution.rsample()
        lp = distribution.log_prob(action)
        now, following = batch.clone(), batch["next"].clone()
        now["action"], following["action"] = action
        after = values(loss.target_qvalue_network_params, following)[chosen].min(0).values
        y = batch["next", "reward"][:, 0] + 0.9 * (~batch["next", "terminated"][:, 0]) * (after - 0.3 * lp[1])
        expected = (values(loss.qvalue_network_params, batch) - y).square()
        actor = (0.3 * lp[0] - values(loss.qvalue_network_params, now).mean(0)).mean()
    assert values(loss.qvalue_network_params, batch).shape == (5, B)
    assert terms["loss_qvalue"].item() == pytest.approx(expected.mean().item(), rel=1e-4)
    assert terms["loss_actor"].item() == pytest.approx(actor.item(), rel=1e-4)


def test_the_temperature_of_redq_is_not_held_at_torchrls_bounds():
    assert make("redq", BOX, alpha=0.01).loss.alpha.item() == pytest.approx(0.01)
    assert make("redq", BOX, alpha=0.0, fixed_alpha=True).loss.alpha.item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("redq", {"num_critics": 2, "subset": 2}, "subset 2 must be smaller than num_critics 2"),
        ("redq", {"alpha": 0.0}, "`alpha` of 0 cannot be adapted"),
        ("sac", {"alpha": 0.0}, "`alpha` of 0 cannot be adapted"),
    ],
)
def test_settings_that_torchrl_would_change_silently_are_refused(name, options, message):
    with pytest.raises(StepError, match=message):
        make(name, BOX, **options)


def test_normalised_layers_are_those_of_action_values_alone():
    networks = Networks(BOX, NetworkSettings(hidden_sizes=[16, 8], layer_norm=True))
    sizes = [m.normalized_shape for m in networks.make_action_value().modules() if isinstance(m, torch.nn.LayerNorm)]
    assert sizes == [(16,), (8,)]
    for other in (networks.make_state_value(), networks.make_stochastic_actor(), networks.make_deterministic_actor()):
        assert not any(isinstance(m, torch.nn.LayerNorm) for m in other.modules())


def test_awac_clones_by_the_exponential_of_the_advantage_of_the_smaller_critic():
    algorithm, batch = make("sac", BOX, alpha=0.0, fixed_alpha=True), make_batch(BOX)
    q = algorithm.loss.qvalue_network_params
    torch.manual_seed(3)
    loss = advantage_weighted(batch, algorithm.loss, algorithm.actor, temperature=0.05, max_weight=7.0)
    torch.manual_seed(3)
    with torch.no_grad():
        policy, drawn = algorithm.actor.get_dist(batch), batch.clone()
        drawn["action"] = policy.sample()
        advantage = values(q, batch).min(0).values - values(q, drawn).min(0).values
        weight = (advantage / 0.05).exp().clamp(max=7.0)
        expected = -(weight * policy.log_prob(batch["action"])).mean()
    assert 0 < (weight == 7).sum() < B
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    loss.backward()
    assert all(p.grad is None for n, p in algorithm.loss.named_parameters() if n.startswith("qvalue"))
    assert any(p.grad is not None for n, p in algorithm.loss.named_parameters() if n.startswith("actor"))


@pytest.mark.parametrize(("name", "spaces"), [("dqn", CHOICES), ("td3", BOX), ("sac", BOX), ("sac", CHOICES)])
def test_weighted_errors_are_those_that_prioritised_replay_reads(name, spaces):
    """A weight of 0 takes a step out of the critics' loss, and the loss writes |δ| to the power that it says."""
    algorithm, batch = make(name, spaces), make_batch(spaces)
    terms = "loss" if name == "dqn" else "loss_qvalue"
    torch.manual_seed(4)
    plain = algorithm.loss(batch)[terms].item()
    one, weights = batch.clone(), torch.zeros(B)
    weights[7] = 1
    one["priority_weight"] = weights
    torch.manual_seed(4)
    alone = algorithm.loss(one)[terms].item()
    error = one["td_error"].reshape(B)[7].item() ** (1 / algorithm.error_power)
    assert alone != pytest.approx(plain)
    critics = 1 if name == "dqn" else 2
    assert error**2 <= alone * (1 + 1e-4) <= critics * error**2 * (1 + 2e-4)  # the error is the largest of the critics
    assert (name == "dqn") <= (alone == pytest.approx(error**2, rel=1e-4))
