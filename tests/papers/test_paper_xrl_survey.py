"""Explainable RL, a survey: every class has a function that runs, and its numbers are those of the policy.

Not shown: coverage of the literature, and what people understand.
"""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.reports.explanations import (
    EXPLAINERS,
    Explained,
    evaluate_parts,
    explain_task,
    measure_fidelity,
    measure_saliency,
    play_episodes,
)
from learning.control.reports.surrogate_tree import Tree, find_question, fit_tree
from learning.control.stepping.spaces import Spaces
from learning.control.worlds.doors import doors, through_door
from learning.lookup import bind
from schemas.control import NetworkSettings, WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/xrl-survey.yaml").stages
WORLD = bind(STAGES["policy"].env)
NUMBERS = 13
"""Of an observation: rows, columns, the bit, two weights."""
CLASSES = ("model", "reward", "state", "task")


def make_policy(bit=0.0):
    """A linear policy that goes to the door's row, through it, and down; the bit counts `bit` for a move up."""
    networks = Networks(Spaces(NUMBERS, 4), NetworkSettings(hidden_sizes=[]))
    actor = networks.make_choice_values()
    weights = torch.zeros(4, NUMBERS)
    weights[0, [3, 4]] = 2.0  # up from the lower rows
    weights[1, [0, 1]] = 2.0
    weights[1, [7, 8]] = -5.0  # behind the door to the right, and then down
    weights[1, 9] = 5.0
    weights[3] = 1.0
    weights[3, -3] = 0.0
    weights[0, [5, 6]] = weights[1, [5, 6]] = 1.0
    weights[[0, 1]] = weights[[0, 1]] + torch.tensor([0.0] * 11 + [1.0, 1.0])
    weights[0, [7, 8, 9]] = -5.0
    weights[0, -3] = bit
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.copy_(weights if parameter.ndim == 2 else torch.zeros_like(parameter))
    return ControlPolicy(networks.spaces, networks.settings, "make_choice_values", actor)


@pytest.fixture
def run(tmp_path):
    """Runs a stage of the recipe on a policy; returns its metrics and what it wrote."""

    def run(name, policy, **options):
        folder = tmp_path / "policy"
        folder.mkdir(exist_ok=True)
        policy.save(folder, {})
        step = Context({"policy": folder}, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        step.folder.mkdir()
        use = STAGES[name].function
        metrics = bind(use.model_copy(update=options), "function", step.inputs)(step)
        return metrics, json.loads((step.output("result") / "explanation.json").read_text())

    return run


def test_every_class_has_an_explainer_and_a_stage_that_runs(run):
    assert set(EXPLAINERS) == set(get_args(Explained)) == set(CLASSES)
    for name in CLASSES:
        assert STAGES[name].function.options["explained"] == name
        metrics, written = run(name, make_policy())
        assert written["explained"] == name
        assert metrics
        assert all(np.isfinite(value) for value in metrics.values())


def test_values_of_the_parts_add_up_to_those_of_the_whole_reward(run):
    """Tables of the steps of the recipe's world; a policy is good for the goal's part, and pays the price's."""
    metrics, _ = run("reward", make_policy(), epsilon=0.3)
    assert metrics["gap"] < 1e-6
    assert metrics["part_0"] + metrics["part_1"] == pytest.approx(metrics["whole"], abs=1e-6)
    assert metrics["part_0"] > 0 > metrics["part_1"]
    assert metrics["part_1"] >= -0.02 / (1 - 0.95)


def test_values_are_those_of_a_chain_by_hand():
    """Two states: the first action of 0 goes on with 1 and a price, the second ends with 4 and a price."""
    value_SAC = evaluate_parts(
        np.array([0, 1, 0]),
        np.array([0, 0, 1]),
        np.array([[1.0, -0.5, 0.5], [4.0, -0.5, 3.5], [0.0, -0.5, -0.5]]),
        np.array([1, 0, 0]),
        np.array([False, True, True]),
        np.array([0, 0]),
        Spaces(2, 2),
        0.5,
    )
    assert value_SAC[0, 0].tolist() == pytest.approx([3, -0.75, 2.25])
    assert value_SAC[1, 0].tolist() == pytest.approx([4, -0.5, 3.5])
    assert value_SAC[0, 1].tolist() == pytest.approx([0, -0.5, -0.5])


def test_a_number_of_weight_zero_has_no_saliency_at_all(run):
    _, written = run("state", make_policy())
    assert len(written["saliency"]) == NUMBERS
    assert written["saliency"][10] == 0.0
    assert written["least"] == 10
    seen = np.eye(NUMBERS, dtype=np.float32)
    looks = make_policy(bit=9.0)
    assert measure_saliency(looks.actor, seen[[10, 10]])[10] == pytest.approx(9)
    box = Networks(Spaces(3, 1, (-1.0,), (1.0,), (1,)), NetworkSettings(hidden_sizes=[])).make_deterministic_actor()
    with pytest.raises(StepError, match="a policy with choices"):
        measure_saliency(box, np.zeros((2, 3)))


def test_a_tree_acts_as_the_tree_that_it_is_fitted_to():
    """Fidelity on actions of a tree of the same depth is 1; a shallower one has less."""
    observation_NO = np.random.default_rng(0).random((300, 3))
    leaves = Tree(0, 0, 0.2, Tree(2), Tree(1)), Tree(0, 1, 0.9, Tree(0), Tree(3))
    truth = Tree(0, 2, 0.5, *leaves)
    action_N = truth.predict(observation_NO)
    assert set(action_N) == {0, 1, 2, 3}
    assert measure_fidelity(fit_tree(observation_NO, action_N, 4), observation_NO, action_N) == 1.0
    assert 0.5 < measure_fidelity(fit_tree(observation_NO, action_N, 1), observation_NO, action_N) < 1.0
    assert truth.describe()[:3] == ["number 2 <= 0.5", "  number 0 <= 0.2", "    action 2"]
    assert find_question(np.ones((4, 2)), np.array([0, 1, 0, 1])) is None
    assert find_question(np.array([[0.0, 7], [1, 7], [2, 7]]), np.array([0, 0, 1])) == (0, 1.5)


def test_the_model_of_a_policy_is_a_tree_of_the_policys_own_actions(run):
    metrics, written = run("model", make_policy(), depth=8, epsilon=0.5)
    assert metrics["fidelity"] == 1.0
    assert written["rules"][0].startswith("number ")
    low, _ = run("model_by_people", make_policy(), depth=1, epsilon=0.5)
    assert low["fidelity"] < 1.0


def test_knowledge_of_people_is_used_where_an_expert_is_given(run):
    assert "agreement" not in run("model", make_policy())[0]
    assert run("model_by_people", make_policy(), epsilon=0.5)[0]["agreement"] == 1.0
    for name in CLASSES:
        assert STAGES[name].function.options.keys() == {"explained", "world", "episodes"}


def test_the_sub_task_is_the_door_that_every_success_passes():
    """Starts differ: the door's column is shared, whatever the bit; cells before it are not."""

    def make():
        """The recipe's world without the bit, so that a cell is one observation."""
        world = WORLD()
        inner = world.world
        inner.observe = lambda: type(inner).observe(inner) * np.array([1] * 10 + [0], np.float32)
        return world

    played = play_episodes(make, make_policy(), 30, 1, 0.0)
    found = explain_task(played, make_policy(), Spaces(NUMBERS, 4))
    assert found["successes"] == 30
    cells = [(row.index(1), row[5:10].index(1)) for row in found["landmarks"]]
    assert cells == [(2, 2), (2, 3), (2, 4), (3, 4)]
    wandering = play_episodes(make, make_policy(), 30, 1, 0.5)
    shared = explain_task(wandering, make_policy(), Spaces(NUMBERS, 4))["landmarks"]
    assert [(row.index(1), row[5:10].index(1)) for row in shared] == [(2, 2), (2, 3)]


def test_rooms_have_one_door_and_two_parts_of_a_reward():
    world = doors()
    world.reset(seed=0)
    world.cell = (0, 1)
    _, reward, done, *_ = world.step(3)
    assert (world.cell, reward.tolist(), done) == ((0, 1), [0, -0.02], False)
    world.cell = (2, 1)
    world.step(3)
    assert world.cell == (2, 2)
    world.cell = (3, 4)
    _, reward, done, *_ = world.step(1)
    assert (reward.tolist(), done) == ([1, -0.02], True)
    bits = {float(world.observe()[-1]) for _ in range(30)}
    assert bits == {0.0, 1.0}
    whole = WORLD()
    whole.reset(seed=0)
    _, earned, *_, info = whole.step(0)
    assert earned == pytest.approx(info["objectives"].sum())
    shown = np.stack([np.eye(5)[[row, column]].reshape(-1) for row, column in ((0, 0), (4, 1), (2, 1), (2, 4))])
    assert through_door(np.concatenate([shown, np.zeros((4, 3))], 1), Spaces(NUMBERS, 4)).tolist() == [1, 0, 3, 1]


def test_policies_are_compared_after_as_many_steps():
    assert STAGES["policy"].environment_steps == STAGES["other"].environment_steps
    assert (STAGES["policy"].loss.use, STAGES["other"].loss.use) == ("dqn", "ppo")
    assert dict(STAGES["report"].models) == {"other": "other", "policy": "policy"}
    assert WorldUse.model_validate(STAGES["report"].env.model_dump()).use == "weighted"
