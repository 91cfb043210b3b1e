"""Imitation: discriminators, learned rewards and inverse soft Q-learning against the papers' formulas."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.nn.functional import logsigmoid

from learning.control.losses import imitation
from learning.control.losses.standard import dqn, ppo, sac
from learning.control.networks.build import Networks
from learning.control.policies.interventions import mix_expert
from learning.control.policies.relabelling import label_by_expert
from learning.control.stepping.spaces import Spaces
from schemas.control import NetworkSettings
from schemas.errors import StepError

BOX, CHOICES = Spaces(3, 2, (-2.0, -1.0), (2.0, 1.0), (2,)), Spaces(4, 3)
SPACES = pytest.mark.parametrize("spaces", [BOX, CHOICES], ids=["box", "choices"])


def make(build, spaces, hidden=(16,), **options):
    torch.manual_seed(0)
    return build(Networks(spaces, NetworkSettings(hidden_sizes=list(hidden))), **options)


def make_batch(spaces, seed=2, count=32):
    g = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(spaces.low), torch.tensor(spaces.high)
    action = (
        torch.randint(spaces.actions, (count,), generator=g)
        if spaces.is_discrete
        else low + (high - low) * (0.05 + 0.9 * torch.rand(count, spaces.actions, generator=g))
    )
    done = torch.rand(count, 1, generator=g) < 0.3
    following = {
        "observation": torch.randn(count, spaces.observations, generator=g),
        "reward": torch.full((count, 1), 100.0),
        "terminated": done,
        "done": done,
    }
    steps = {"observation": torch.randn(count, spaces.observations, generator=g), "action": action}
    return TensorDict({**steps, "next": TensorDict(following, [count])}, [count])


def mlp(module, inputs):
    """One hidden layer with ReLU, from a module's parameters in order."""
    first, first_bias, last, last_bias = module.parameters()
    return torch.relu(inputs @ first.T + first_bias) @ last.T + last_bias


def score(module, batch, spaces):
    """The logit of a plain discriminator."""
    if spaces.is_discrete:
        return mlp(module, batch["observation"])[torch.arange(len(batch)), batch["action"]]
    return mlp(module, torch.cat([batch["observation"], batch["action"]], -1))[:, 0]


@SPACES
def test_the_discriminator_tells_the_experts_steps_from_own_ones(spaces):
    """−E_expert[log D] − E_own[log(1 − D)], which trains the discriminator alone."""
    algorithm, own, expert = make(imitation.gail, spaces), make_batch(spaces), make_batch(spaces, 3)
    value = algorithm.loss.discriminator.value
    with torch.no_grad():
        expected = -logsigmoid(score(value, expert, spaces)).mean() - logsigmoid(-score(value, own, spaces)).mean()
    loss = imitation.discriminate(own, expert, algorithm.loss, algorithm.actor)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    moved = {name.partition(".")[0] for name, p in algorithm.loss.named_parameters() if p.grad is not None}
    assert moved == {"discriminator"}


@SPACES
def test_gail_earns_what_the_discriminator_takes_for_the_experts(spaces):
    """r = −log(1 − D); the reward of the world, here 100, plays no part."""
    algorithm, batch = make(imitation.gail, spaces, gamma=0.9, lmbda=0.8), make_batch(spaces).reshape(4, 8)
    with torch.no_grad():
        expected = -logsigmoid(-score(algorithm.loss.discriminator.value, batch.reshape(-1), spaces))
        algorithm.advantage(batch)
        assert torch.allclose(batch["next", "reward"].reshape(-1), expected, atol=1e-5)
        plain, again = make(ppo, spaces, gamma=0.9, lmbda=0.8), make_batch(spaces).reshape(4, 8)
        plain.loss.load_state_dict(algorithm.loss.state_dict(), strict=False)
        again["next", "reward"] = expected.reshape(4, 8, 1)
        plain.advantage(again)
    assert torch.allclose(batch["advantage"], again["advantage"], atol=1e-5)


@SPACES
def test_airl_is_shaped_and_subtracts_the_policys_log_probability(spaces):
    """f = g(s, a) + γ h(s') − h(s) − log π(a|s); no h after an end."""
    algorithm, batch = make(imitation.airl, spaces, gamma=0.9), make_batch(spaces)
    d = algorithm.loss.discriminator
    with torch.no_grad():
        batch["action_log_prob"] = algorithm.actor.get_dist(batch).log_prob(batch["action"])
        h, after = (mlp(d.potential, part["observation"])[:, 0] for part in (batch, batch["next"]))
        goes_on = ~batch["next", "terminated"][:, 0]
        reward = score(d.value, batch, spaces) + 0.9 * goes_on * after - h
        expected = reward - batch["action_log_prob"]
        rollout = batch.reshape(4, 8)
        algorithm.advantage(rollout)
    assert torch.allclose(rollout["next", "reward"].reshape(-1), expected, atol=1e-4)
    loss = imitation.discriminate(batch.exclude("action_log_prob"), batch, algorithm.loss, algorithm.actor)
    wanted = (-logsigmoid(expected) - logsigmoid(-expected)).mean()  # D = exp(f) / (exp(f) + π)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-4)
    loss.backward()
    assert all(p.grad is None for p in algorithm.actor.parameters())


def test_a_perfectly_fitted_discriminator_gives_the_ratio_of_densities():
    """Of one observation with expert shares (.75, .25, 0) and own (.25, .25, .5): exp f = 3, 1, 0 (Goodfellow 2014)."""
    algorithm = make(imitation.gail, CHOICES, hidden=())
    expert, own = (make_batch(CHOICES, count=4) for _ in range(2))
    for batch, actions in ((expert, [0, 0, 0, 1]), (own, [0, 1, 2, 2])):
        batch["observation"], batch["action"] = torch.zeros(4, 4), torch.tensor(actions)
    optimizer = torch.optim.Adam(algorithm.loss.discriminator.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        imitation.discriminate(own, expert, algorithm.loss, algorithm.actor).backward()
        optimizer.step()
    ratio = algorithm.loss.discriminator(own).exp().tolist()
    assert ratio[:2] == pytest.approx([3, 1], rel=0.02)
    assert ratio[2] < 0.01


def test_inverse_q_for_choices_is_the_papers_loss():
    algorithm, own, expert = make(dqn, CHOICES), make_batch(CHOICES), make_batch(CHOICES, 3)

    def measure(batch):
        network = list(algorithm.loss.value_network_params.values(True, True))
        leaves = {key[-2:]: v for key, v in algorithm.loss.value_network_params.items(True, True)}
        assert len(network) == 4
        first, last = sorted({layer for layer, _ in leaves}, key=int)

        def q(observation):
            hidden = torch.relu(observation @ leaves[first, "weight"].T + leaves[first, "bias"])
            return hidden @ leaves[last, "weight"].T + leaves[last, "bias"]

        now, after = q(batch["observation"]), q(batch["next", "observation"])
        v, w = (0.5 * torch.log((one / 0.5).exp().sum(-1)) for one in (now, after))
        continued = 0.9 * (~batch["next", "terminated"][:, 0]) * w
        return now[torch.arange(len(batch)), batch["action"]] - continued, v - continued

    (reward, _), (_, difference) = measure(expert), measure(own)
    expected = -(reward - reward.square() / (4 * 0.3)).mean() + difference.mean()
    options = {"gamma": 0.9, "temperature": 0.5, "alpha": 0.3}
    loss = imitation.inverse_q(own, expert, algorithm.loss, algorithm.actor, **options)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_inverse_q_recovers_the_experts_shares():
    """One state that ends: with α → ∞ the soft policy of Q is the expert's, here (.75, .25, 0.0)."""
    algorithm, expert = make(dqn, CHOICES, hidden=()), make_batch(CHOICES, count=8)
    expert["observation"] = torch.zeros(8, 4)
    expert["action"] = torch.tensor([0, 0, 0, 1, 2, 0, 0, 1])
    expert["next", "terminated"] = torch.ones(8, 1, dtype=torch.bool)
    optimizer = torch.optim.Adam(algorithm.loss.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        imitation.inverse_q(expert, expert, algorithm.loss, algorithm.actor, alpha=1e6).backward()
        optimizer.step()
    shares = algorithm.actor(expert.select("observation"))["action_value"][0].softmax(-1)
    assert shares.tolist() == pytest.approx([5 / 8, 2 / 8, 1 / 8], abs=1e-3)


def test_inverse_q_for_numbers_uses_every_critic_and_leaves_the_actor():
    algorithm = make(sac, BOX, alpha=0.1, fixed_alpha=True)
    own, expert = make_batch(BOX), make_batch(BOX, 3)

    def q(batch, action):
        leaves = {key[-2:]: v for key, v in algorithm.loss.qvalue_network_params.items(True, True)}
        first, last = sorted({layer for layer, _ in leaves}, key=int)
        inputs = torch.cat([batch["observation"], action], -1)
        hidden = torch.relu(inputs @ leaves[first, "weight"].mT + leaves[first, "bias"][:, None])
        return (hidden @ leaves[last, "weight"].mT + leaves[last, "bias"][:, None])[..., 0]

    def soft(batch):
        policy = algorithm.actor.get_dist(batch.select("observation"))
        action = policy.rsample()
        return (q(batch, action) - 0.1 * policy.log_prob(action)).detach()

    def measure(batch):
        v, w = soft(batch), soft(batch["next"])
        continued = 0.99 * (~batch["next", "terminated"][:, 0]) * w
        return q(batch, batch["action"]) - continued, v - continued

    torch.manual_seed(7)
    (reward, _), (_, difference) = measure(expert), measure(own)
    expected = (difference.mean(-1) - (reward - reward.square() / 2).mean(-1)).sum()
    torch.manual_seed(7)
    loss = imitation.inverse_q(own, expert, algorithm.loss, algorithm.actor, temperature=0.1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    loss.backward()
    moved = {n.partition("_params")[0] for n, p in algorithm.loss.named_parameters() if p.grad is not None}
    assert moved == {"qvalue_network"}


def test_an_expert_is_asked_for_labels_and_takes_over():
    observation_NO = np.arange(6, dtype=np.float32)[:, None]

    def expert(**asked):
        return 10 + np.arange(6) if not asked else (asked["observation_NO"][:, 0] * 2).astype(int)

    assert label_by_expert(observation_NO, expert=expert)["action"].tolist() == [0, 2, 4, 6, 8, 10]
    own_N, rng = np.arange(6), np.random.default_rng(0)
    drawn_N = np.random.default_rng(0).random(6) < 0.5
    mixed_N = mix_expert(own_N, rng, expert=expert, share=0.5)
    assert mixed_N.tolist() == np.where(drawn_N, own_N + 10, own_N).tolist()
    assert 0 < drawn_N.sum() < 6
    box_NA = mix_expert(np.zeros((2, 3)), rng, expert=lambda: np.ones((2, 3)), share=1.0)
    assert box_NA.tolist() == np.ones((2, 3)).tolist()


def test_the_term_of_a_discriminator_needs_one():
    algorithm, batch = make(ppo, CHOICES), make_batch(CHOICES)
    with pytest.raises(StepError, match="needs the discriminator of `loss: gail`"):
        imitation.discriminate(batch, batch, algorithm.loss, algorithm.actor)
