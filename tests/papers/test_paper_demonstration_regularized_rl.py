"""Demonstration-regularised RL: the best policy near a clone is clone · exp(Q/λ), and the recipe's term leads to it.

Not shown: rates of sample complexity, linear processes.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import read_transitions
from learning.control.worlds.tabular import draw_process, evaluate, solve, solve_near
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.recipe.load import load_recipe
from tasks import collect, control
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/demonstration-regularized-rl.yaml").stages
PROCESS = draw_process(4, 2, 4, 0)
TABLE = NetworkSettings(hidden_sizes=[])


def make_actor(spaces, logits=None):
    """An actor that draws actions, by a table; without logits its weights are random."""
    actor = Networks(spaces, TABLE).make_stochastic_actor()
    for parameter in actor.parameters() if logits is not None else ():
        parameter.data.zero_()
        if parameter.ndim == 1:
            parameter.data.copy_(torch.tensor(logits))
    return actor


@pytest.fixture
def near(tmp_path):
    """The recipe's term with a clone that takes two choices with probabilities .8 and .2."""
    spaces = Spaces(1, 2)
    clone = make_actor(spaces, [math.log(0.8), math.log(0.2)])
    ControlPolicy(spaces, TABLE, "make_stochastic_actor", clone).save(tmp_path, {})
    use = STAGES["regularised"].loss_terms["near"]
    return bind(use, "loss_terms.near", {"loss_terms.near.policy": tmp_path}), clone, spaces


@pytest.mark.parametrize(
    ("strength", "expected"), [(1.0, [0.5954, 0.4046]), (1e6, [0.8, 0.2]), (0.2, [0.0262, 0.9738])]
)
def test_the_best_policy_near_the_clone_is_the_clone_times_exp_q(strength, expected, near):
    """Of −E_π[Q] / λ + KL with Q = (0, 1)."""
    term, clone, spaces = near
    actor = make_actor(spaces, [0.0, 0.0])
    batch = TensorDict({"observation": torch.zeros(3, 1)}, [3])
    optimizer = torch.optim.Adam(actor.parameters(), lr=0.05)
    for _ in range(600):
        probability = actor.get_dist(batch).probs
        loss = term.ask(0, {"batch": batch, "actor": actor}) - probability[:, 1].mean() / strength
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert actor.get_dist(batch).probs[0].tolist() == pytest.approx(expected, abs=2e-3)
    assert all(parameter.grad is None for parameter in clone.parameters())


def test_the_term_is_the_kl_of_the_policy_to_the_clone_and_not_the_other_way(near):
    term, _, spaces = near
    actor, batch = make_actor(spaces, [0.0, math.log(3)]), TensorDict({"observation": torch.ones(2, 1)}, [2])
    expected = 0.25 * math.log(0.25 / 0.8) + 0.75 * math.log(0.75 / 0.2)
    assert term.ask(0, {"batch": batch, "actor": actor}).item() == pytest.approx(expected, rel=1e-5)


def test_of_numbers_it_is_that_of_the_gaussians(tmp_path):
    torch.manual_seed(0)
    spaces = Spaces(2, 1, (-1.0,), (1.0,), (1,))
    clone, actor = make_actor(spaces), make_actor(spaces)
    ControlPolicy(spaces, TABLE, "make_stochastic_actor", clone).save(tmp_path, {})
    term = bind(STAGES["regularised"].loss_terms["near"], "near", {"near.policy": tmp_path})
    batch = TensorDict({"observation": torch.randn(5, 2)}, [5])
    made = [one.get_dist_params(batch.select("observation")) for one in (actor, clone)]
    (m, s), (n, t) = [(one["loc"], one["scale"]) for one in made]
    expected = ((t / s).log() + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5).sum(-1).mean()
    assert term.ask(0, {"batch": batch, "actor": actor}).item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_exact_values_near_a_clone_are_those_of_the_formula():
    """One state, Q = (0, 1), clone (.8, .2), λ = 1: V = log(.8 + .2 e) = .2954."""
    reference = np.array([[[0.8, 0.2]]])
    from learning.control.worlds.tabular import Process

    single = Process(np.ones((1, 2, 1)), np.array([[0.0, 1.0]]), 1)
    _, policy = solve_near(single, reference, 1.0)
    assert policy[0, 0].tolist() == pytest.approx([0.5954, 0.4046], abs=1e-4)
    twice = Process(np.ones((1, 2, 1)), np.array([[0.0, 1.0]]), 2)
    values, _ = solve_near(twice, np.repeat(reference, 2, 0), 1.0)
    assert values[0, 0].tolist() == pytest.approx([0.2954, 1.2954], abs=1e-4)


def test_without_a_clone_the_best_values_come_out_and_with_an_infinite_strength_the_clone():
    uniform = np.full((4, 4, 2), 0.5)
    values, policy = solve_near(PROCESS, uniform, 1e-4)
    assert values == pytest.approx(solve(PROCESS), abs=1e-3)
    assert evaluate(PROCESS, policy) == pytest.approx(solve(PROCESS)[0].max(1), abs=1e-3)
    _, policy = solve_near(PROCESS, uniform, 1e6)
    assert policy == pytest.approx(uniform, abs=1e-5)


def test_backward_induction_agrees_with_every_policy_written_down():
    """The best of all 2^8 policies of two steps in four states has the values of `solve`."""
    from itertools import product

    process = draw_process(4, 2, 2, 3)
    every = [evaluate(process, np.eye(2)[np.array(choice).reshape(2, 4)]) for choice in product((0, 1), repeat=8)]
    assert np.max(every, axis=0) == pytest.approx(solve(process)[0].max(1), abs=1e-12)


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations")
    collect.run(STAGES["demonstrations"], Context({}, folder, folder / "c", seed=1))
    return folder / "outputs/transitions"


def test_demonstrations_are_best_actions_with_a_tenth_of_others(demonstrations):
    data = read_transitions(demonstrations)
    best = solve(PROCESS).argmax(-1).reshape(-1)[data.observation.argmax(1)]
    assert len(np.unique(data.episode)) == 12
    assert len(data) == 48
    assert 0.75 < (best == data.action).mean() < 1
    assert np.allclose(data.reward, PROCESS.reward_SA[data.observation.argmax(1) % 4, data.action])


def test_the_clone_has_the_shares_of_the_demonstrations(demonstrations, tmp_path):
    from learning.control.policies.policy import load_control_policy

    stage = STAGES["cloned"].model_copy(update={"max_steps": 1500})
    control.run(stage, Context({"data.0": demonstrations}, tmp_path, tmp_path / "c", seed=1))
    actor = load_control_policy(tmp_path / "outputs/model").actor
    data = read_transitions(demonstrations)
    seen = np.unique(data.observation.argmax(1))
    probability = actor.get_dist(TensorDict({"observation": torch.eye(16)}, [16])).probs.detach().numpy()
    taken = np.array([data.action[data.observation.argmax(1) == place].mean() for place in seen])
    mixed = (taken > 0) & (taken < 1)
    assert probability[seen, 1][mixed] == pytest.approx(taken[mixed], abs=0.1)
    assert (np.abs(probability[seen, 1] - taken) < 0.3).all()


def test_the_arms_differ_in_the_start_and_the_term_alone():
    arms = {name: STAGES[name].model_dump() for name in ("plain", "warm", "regularised")}
    assert arms["regularised"].pop("loss_terms")["near"]["coef"] == 0.1
    assert not any(arm.pop("loss_terms", {}) for arm in arms.values())
    assert {name: arm.pop("model") for name, arm in arms.items()} == {
        "plain": None,
        "warm": "cloned",
        "regularised": "cloned",
    }
    assert arms["plain"] == arms["warm"] == arms["regularised"]
    assert arms["plain"]["environment_steps"] == 1024
    assert STAGES["regularised"].loss_terms["near"].options == {"policy": "cloned"}
    assert STAGES["demonstrations"].episodes == 12
    assert dict(STAGES["report"].models) == {n: n for n in ("cloned", "plain", "warm", "regularised")}
