"""Models of a world and steps imagined in them: likelihoods, branches and batches against formulas written again."""

import math

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from learning.control.buffers.buffer import Buffer
from learning.control.losses import dynamics
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import Transitions
from schemas.control import NetworkSettings
from schemas.errors import StepError
from tests.control_worlds import line

SPACES = Spaces(2, 1, (-1.0,), (1.0,), (1,))


def make(**options):
    torch.manual_seed(0)
    return dynamics.mbpo(Networks(SPACES, NetworkSettings(hidden_sizes=[8])), **options)


def keep(count, ended=False):
    """Steps whose next observation is the observation plus the action, and whose reward is their first number."""
    rng = np.random.default_rng(1)
    observation, action = rng.normal(size=(count, 2)), rng.uniform(-1, 1, (count, 1))
    kept = Buffer(count, SPACES)
    no = np.full(count, False)
    terminated = np.full(count, ended)
    kept.add(
        Transitions(
            SPACES, no, no, observation, action, observation[:, 0], observation + action, terminated, ~terminated
        )
    )
    return kept


def test_the_models_are_trained_by_the_likelihood_of_real_steps():
    """Against torch's distributions, model by model, and the derivative of a mean by hand."""
    algorithm, kept = make(models=3), keep(40, ended=True)
    batch = algorithm.draw([kept], 16)
    models, real = algorithm.loss.dynamics, batch["real"]
    assert real.batch_size == (16, 3)
    total = 0.0
    for m in range(3):
        x = torch.cat([real["observation"][:, m], real["action"][:, m]], -1)
        x = (x - models.shift) / models.width
        hidden = torch.relu(x @ models.weights[0][m] + models.biases[0][m])
        out = hidden @ models.weights[1][m] + models.biases[1][m]
        upper = models.highest - torch.log1p((models.highest - out[:, 3:6]).exp())
        log_variance = models.lowest + torch.log1p((upper - models.lowest).exp())
        following = real["next"][:, m]
        target = torch.cat([following["observation"] - real["observation"][:, m], following["reward"]], -1)
        gaussian = torch.distributions.Normal(out[:, :3], (log_variance / 2).exp()).log_prob(target).sum(-1)
        ends = torch.distributions.Bernoulli(logits=out[:, 6]).log_prob(torch.ones(16))
        total = total - (gaussian + ends).mean()
    bounds = 0.5 * (models.highest - models.lowest).sum()
    term = dynamics.dynamics_likelihood(batch, algorithm.loss, bound_weight=0.5)
    assert term.item() == pytest.approx((total + bounds).item(), rel=1e-5)
    term.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in models.parameters())
    with pytest.raises(StepError, match="loss: mbpo"):
        dynamics.dynamics_likelihood(batch.exclude("real"), algorithm.loss)


def know(models, ends=-30.0):
    """Make every model know the world of `keep`, without noise, and end episodes with a logit."""
    with torch.no_grad():
        for parameter in [*models.weights, *models.biases]:
            parameter.zero_()
        models.highest.fill_(-29.0)
        models.lowest.fill_(-30.0)
        models.shift.zero_()
        models.width.fill_(1.0)
        for unit, (number, sign) in enumerate([(0, 1), (0, -1), (2, 1), (2, -1)]):  # x = relu(x) − relu(−x)
            models.weights[0][:, number, unit] = sign
        models.weights[1][:, 0:2, 2] = torch.tensor([1.0, -1.0])
        models.weights[1][:, 2:4, 0:2] = torch.tensor([[1.0], [-1.0]])
        models.biases[1][..., 6] = ends


def test_branches_follow_the_models_step_by_step_and_end():
    algorithm = make(models=2)
    models, start = algorithm.loss.dynamics, torch.randn(6, 2)
    know(models)
    batch = dynamics.imagine(models, algorithm.actor, start, 3)
    assert len(batch) == 18
    assert torch.equal(batch["observation"][:6], start)
    assert torch.equal(batch["observation"][6:], batch["next", "observation"][:12])
    assert torch.allclose(batch["next", "observation"], batch["observation"] + batch["action"], atol=1e-4)
    assert torch.allclose(batch["next", "reward"], batch["observation"][:, :1], atol=1e-4)
    assert not batch["next", "terminated"].any()
    know(models, ends=30.0)
    ended = dynamics.imagine(models, algorithm.actor, start, 3)
    assert len(ended) == 6
    assert ended["next", "terminated"].all()
    assert ended["next", "done"].all()


def test_each_model_makes_a_share_of_the_steps_with_its_own_mean_and_spread():
    models, rows = make(models=2).loss.dynamics, 40000
    know(models)
    with torch.no_grad():
        models.highest.fill_(10.0)
        models.lowest.fill_(-10.0)
        models.biases[1][:, 0, 2] = torch.tensor([0.0, 6.0])
        models.biases[1][:, 0, 5] = torch.tensor([math.log(0.25), math.log(4.0)])
    _, reward, _ = models.draw_next(torch.zeros(rows, 2), torch.zeros(rows, 1))
    # A mixture of N(0, ¼) and N(6, 4): mean 3, variance 2.125 + 9.
    assert reward.mean().item() == pytest.approx(3, abs=0.07)
    assert reward.var().item() == pytest.approx(2.125 + 9, abs=0.15)


def test_a_batch_is_of_imagined_steps_and_a_share_of_kept_ones():
    kept = keep(50)
    algorithm = make(models=2, real_share=0.25, rollout_length=2)
    with torch.no_grad():
        algorithm.loss.dynamics.biases[1][..., 6] = -30.0  # no branch ends
    batch = algorithm.draw([kept], 32)
    rows = {tuple(row) for row in kept.columns["observation"].tolist()}
    assert len(batch) == 32
    assert [tuple(row) in rows for row in batch["observation"].tolist()] == [True] * 12 + [False] * 12 + [True] * 8
    given = torch.cat([kept.columns["observation"], kept.columns["action"]], -1)
    models = algorithm.loss.dynamics
    assert torch.allclose((given - models.shift) / models.width, (given - given.mean(0)) / given.std(0, correction=0))
    both = algorithm.draw([kept, keep(30)], 64)
    assert len(both) == 64
    know(models, ends=30.0)
    short = algorithm.draw([kept], 32)
    assert short["next", "terminated"][:12].all()
    assert not short["next", "terminated"][12:].any(), "branches that ended are filled up with kept steps"


def test_the_losses_are_those_of_soft_actor_critic_on_the_batch():
    from learning.control.losses.standard import sac

    algorithm, kept = make(models=2), keep(40)
    torch.manual_seed(0)
    plain = sac(Networks(SPACES, NetworkSettings(hidden_sizes=[8])))
    batch = algorithm.draw([kept], 16)
    results = []
    for one, given in ((algorithm, batch), (plain, batch.exclude("real"))):
        torch.manual_seed(4)
        results.append({name: one.loss(given)[name].item() for name in ("loss_actor", "loss_qvalue", "loss_alpha")})
    assert results[0] == results[1]


def test_models_learn_a_world_and_choices_are_refused():
    """A point on a line, from 400 random steps: the next step and its reward, by each model."""
    from learning.control.stepping.worlds import Worlds

    worlds, rng = Worlds(line, 1, 0, "test"), np.random.default_rng(0)
    kept = Buffer(400, worlds.spaces)
    for _ in range(400):
        kept.add(worlds.step(rng.uniform(-1, 1, (1, 1)).astype(np.float32)))
    torch.manual_seed(0)
    algorithm = dynamics.mbpo(Networks(worlds.spaces, NetworkSettings(hidden_sizes=[32])), models=2)
    models = algorithm.loss.dynamics
    optimizer = torch.optim.Adam(models.parameters(), lr=5e-3)
    for _ in range(300):
        optimizer.zero_grad()
        dynamics.dynamics_likelihood(algorithm.draw([kept], 32), algorithm.loss).backward()
        optimizer.step()
    shown, action = torch.tensor([[-0.5], [0.0], [0.5]]), torch.tensor([[0.8], [-0.4], [0.2]])
    mean, _, _ = models(shown.expand(2, 3, 1), action.expand(2, 3, 1))
    after = shown + 0.5 * action
    mean = mean.detach().numpy()
    assert mean[..., 0] == pytest.approx((0.5 * action[:, 0]).expand(2, 3).numpy(), abs=0.05)
    assert mean[..., 1] == pytest.approx(-after[:, 0].square().expand(2, 3).numpy(), abs=0.15)
    with pytest.raises(StepError, match="numbers in a box"):
        dynamics.mbpo(Networks(Spaces(2, 3), NetworkSettings(hidden_sizes=[8])))


def test_batches_are_tensor_dicts_of_one_size():
    assert isinstance(make().draw([keep(20)], 8), TensorDict)
