"""MDPO: inner steps end at π_k exp(tA), the first of them is a policy gradient, and SAC is a special case.

Not shown: the ranking on MuJoCo; TRPO.
"""

import math
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Independent, Uniform

from learning.control.buffers.rollouts import add_previous_policy
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "mdpo.yaml").stages
MDPO, PPO, OFF, SAC = (STAGES[name] for name in ("mdpo", "ppo", "mdpo_off", "sac"))
BOX = Spaces(3, 1, (-2.0,), (2.0,), (1,))
SMALL = NetworkSettings(hidden_sizes=[16])


def make(stage, spaces, **options):
    torch.manual_seed(0)
    use = stage.loss.model_copy(update=options) if options else stage.loss
    return bind(use, "loss")(Networks(spaces, SMALL))


@pytest.fixture
def bandit():
    """One state, two choices of which each was taken once, with advantages 1 and −1; the policy's logits are equal."""
    algorithm = make(MDPO, Spaces(1, 2), normalize_advantage=False)
    last = list(algorithm.actor.parameters())[-2:]
    for parameter in last:
        parameter.data.zero_()
    batch = TensorDict({"observation": torch.ones(2, 1), "action": torch.tensor([0, 1])}, [2])
    with torch.no_grad():
        add_previous_policy(algorithm.actor, batch)
    batch["advantage"], batch["value_target"] = torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1)
    return algorithm, batch


def compute_objective(algorithm, batch, t):
    """The loss of the actor: the surrogate, and the stage's own term at the step size `t`."""
    proximity = bind(MDPO.loss_terms["proximity"].model_copy(update={"t": t}), "loss_terms.proximity")
    supplies = {"batch": batch, "actor": algorithm.actor}
    return algorithm.loss(batch)["loss_objective"] + MDPO.loss_terms["proximity"].coef * proximity.ask(0, supplies)


def test_the_inner_loop_ends_at_the_previous_policy_times_the_exponential_of_the_advantage(bandit):
    algorithm, batch = bandit
    optimizer = torch.optim.Adam(algorithm.actor.parameters(), lr=1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        compute_objective(algorithm, batch, 0.5).backward()
        optimizer.step()
    p = algorithm.actor.get_dist(batch.select("observation")).probs[0].tolist()
    weights = [0.5 * math.exp(0.5 * a) for a in (1, -1)]
    assert p == pytest.approx([w / sum(weights) for w in weights], abs=1e-3)
    assert p == pytest.approx([0.731, 0.269], abs=1e-3)


def list_gradients(loss, actor):
    for parameter in actor.parameters():
        parameter.grad = None
    loss.backward()
    return torch.cat([p.grad.flatten() for p in actor.parameters()])


def test_the_first_inner_step_is_the_policy_gradient_and_the_second_is_not(bandit):
    algorithm, batch = bandit
    actor = algorithm.actor

    def differ():
        advantage_B = batch["advantage"][:, 0]
        log_p = actor.get_dist(batch.select("observation")).log_prob(batch["action"])
        ratio = (log_p - batch["action_log_prob"]).exp()
        plain = list_gradients(-(ratio * advantage_B).mean(), actor)
        return (list_gradients(compute_objective(algorithm, batch, 0.5), actor) - plain).abs().max().item()

    assert differ() < 1e-6
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter -= 0.5 * parameter.grad
    assert differ() > 1e-2


def test_the_proximity_of_gaussians_is_their_divergence_from_the_present_to_the_previous():
    algorithm = make(MDPO, BOX)
    batch = TensorDict({"observation": torch.randn(5, 3), "action": torch.zeros(5, 1)}, [5])
    with torch.no_grad():
        add_previous_policy(algorithm.actor, batch)
        before = batch["previous"].clone()
        for parameter in algorithm.actor.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    now = algorithm.actor.get_dist_params(batch.select("observation"))
    m, s, n, r = now["loc"], now["scale"], before["loc"], before["scale"]
    expected = (torch.log(r / s) + (s**2 + (m - n) ** 2) / (2 * r**2) - 0.5).sum(-1).mean() / 0.25
    proximity = bind(MDPO.loss_terms["proximity"].model_copy(update={"t": 0.25}), "loss_terms.proximity")
    assert proximity.ask(0, {"batch": batch, "actor": algorithm.actor}).item() == pytest.approx(
        expected.item(), rel=1e-5
    )


class Flat(Independent):
    """A uniform distribution over the box."""

    def __init__(self):
        super().__init__(Uniform(torch.full((1,), -2.0), torch.full((1,), 2.0), validate_args=False), 1)


def test_with_a_uniform_previous_policy_the_off_policy_actor_is_that_of_sac():
    algorithm, batch = make(OFF, BOX), make_batch()
    flat = type("Previous", (), {"get_dist": lambda self, shown: Flat()})()
    algorithm.loss.__dict__["previous"] = flat
    del algorithm.loss._modules["previous"]
    t = OFF.loss_terms["loss_actor"].t
    sac = bind(SAC.loss.model_copy(update={"alpha": 1 / t, "fixed_alpha": True}), "loss")(Networks(BOX, SMALL))
    sac.loss.load_state_dict(
        {n: v for n, v in algorithm.loss.state_dict().items() if n in sac.loss.state_dict() and "alpha" not in n},
        strict=False,
    )
    term = bind(OFF.loss_terms["loss_actor"], "loss_terms.loss_actor")
    torch.manual_seed(3)
    ours = list_gradients(
        term.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor}), algorithm.actor
    )
    torch.manual_seed(3)
    loss, _ = sac.loss.actor_loss(batch)[:2]
    theirs = list_gradients(loss.mean(), sac.actor)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert ours.abs().max() > 1e-3


def test_the_off_policy_actor_is_pulled_to_the_previous_policy():
    """With critics of 0 the loss is the mean log-ratio over t; squashing cancels in it, which leaves two Gaussians."""
    algorithm, batch = make(OFF, BOX), make_batch()
    for tensor in algorithm.loss.qvalue_network_params.values(True, True):
        tensor.data.zero_()
    with torch.no_grad():
        for parameter in algorithm.actor.parameters():
            parameter += 0.1
    term = bind(OFF.loss_terms["loss_actor"], "loss_terms.loss_actor")
    torch.manual_seed(3)
    loss = term.ask(0, {"batch": batch, "loss": algorithm.loss, "actor": algorithm.actor})
    torch.manual_seed(3)
    now, before = (
        actor.get_dist_params(batch.select("observation")) for actor in (algorithm.actor, algorithm.loss.previous)
    )
    raw = torch.atanh(algorithm.actor.get_dist(batch.select("observation")).rsample() / 2)
    scores = [torch.distributions.Normal(p["loc"], p["scale"]).log_prob(raw).sum(-1) for p in (now, before)]
    assert loss.item() == pytest.approx(((scores[0] - scores[1]) / 5).mean().item(), rel=1e-3)
    assert abs(loss.item()) > 1e-3
    loss.backward()
    assert all(t.grad is None for t in algorithm.loss.qvalue_network_params.values(True, True))


def make_batch():
    g = torch.Generator().manual_seed(1)
    ends = {name: torch.zeros(64, 1, dtype=torch.bool) for name in ("terminated", "done")}
    following = {"observation": torch.randn(64, 3, generator=g), "reward": torch.randn(64, 1, generator=g), **ends}
    batch = {"observation": torch.randn(64, 3, generator=g), "action": torch.rand(64, 1, generator=g) * 4 - 2}
    return TensorDict({**batch, "next": TensorDict(following, [64])}, [64])


def test_the_previous_policy_is_renewed_after_the_inner_steps_and_pulls_before():
    algorithm, batch = make(OFF, BOX), make_batch()
    shown = batch.select("observation")
    with torch.no_grad():
        for parameter in algorithm.actor.parameters():
            parameter += 0.1
    kept = []
    for _ in range(20):
        algorithm.update_targets()
        now, before = algorithm.actor.get_dist(shown).loc, algorithm.loss.previous.get_dist(shown).loc
        kept.append(torch.equal(now, before))
        if kept[-1]:
            with torch.no_grad():
                for parameter in algorithm.actor.parameters():
                    parameter += 0.1
    assert kept == [False] * 9 + [True] + [False] * 9 + [True]
    assert "previous" in {name.partition(".")[0] for name in algorithm.loss.state_dict()}
    assert not any(name.startswith("previous") for name, p in algorithm.loss.named_parameters() if p.requires_grad)


def test_targets_have_no_entropy():
    assert make(OFF, BOX).loss(make_batch())["alpha"].item() < 1e-9


def test_both_pairs_estimate_advantages_and_values_alike():
    ours, theirs = (make(stage, Spaces(1, 2)) for stage in (MDPO, PPO))
    for name in ("gamma", "lmbda", "average_gae"):
        assert getattr(ours.advantage, name) == getattr(theirs.advantage, name)
    for name in ("normalize_advantage", "critic_coeff", "loss_critic_type"):
        assert getattr(ours.loss, name) == getattr(theirs.loss, name)
    ours, theirs = (make(stage, BOX) for stage in (OFF, SAC))
    assert ours.loss.num_qvalue_nets == theirs.loss.num_qvalue_nets == 2
    assert ours.loss.value_estimator.gamma == theirs.loss.value_estimator.gamma


def test_the_step_size_falls_and_the_pairs_differ_in_the_objective_alone():
    proximity = bind(MDPO.loss_terms["proximity"], "loss_terms.proximity")
    assert [proximity.at(step).keywords["t"] for step in (0, 10, 20)] == pytest.approx([1.0, 0.525, 0.05])
    for ours, theirs, differ in (
        (MDPO, PPO, {"algorithm", "loss", "loss_terms"}),
        (OFF, SAC, {"algorithm", "loss", "loss_terms"}),
    ):
        a, b = ours.model_dump(), theirs.model_dump()
        assert {key for key in a if a[key] != b[key]} == differ
    assert dict(STAGES["report"].models) == {"ppo": "ppo", "mdpo": "mdpo"}
    assert dict(STAGES["report_off"].models) == {"sac": "sac", "mdpo_off": "mdpo_off"}
