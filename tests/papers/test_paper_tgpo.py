"""TGPO: a formula as subgoals with windows, times within them that a critic guides, rewards that change with the stage.

Not shown: the gain of 31.6 %, five environments, robots.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.losses.critics import find_critic, value_starts
from learning.control.policies.policy import load_control_policy, load_networks
from learning.control.rounds.allocations import accept_probability
from learning.control.worlds.temporal_logic import Invariant, Plan, Subgoal, read_formula, read_plan
from learning.lookup import bind
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from schemas.stages.evaluate_control import EvaluateControl
from tasks import control, evaluate_control, python
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/tgpo.yaml").stages
LOW, HIGH = np.array([0.0, 10.0]), np.array([10.0, 20.0])


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """What the recipe makes of its formula."""
    folder = tmp_path_factory.mktemp("plan")
    context = Context({}, folder, folder / "c", seed=1)
    assert python.run(STAGES["plan"], context).metrics == {"subgoals": 2, "invariants": 1}
    return context.output("result")


def make_use(name, plan):
    use = STAGES[name].env
    return type(use).model_validate({"use": use.use, **use.options, "plan": str(plan)})


@pytest.fixture
def world(plan):
    world = bind(make_use("guided", plan), "env")()
    world.reset(seed=0, options={"task": np.array([8.2, 19.0])})
    return world


def ask(name, value_of, count, seed=0, **options):
    """Tasks that the teacher of a stage chooses for a critic."""
    use = STAGES[name].teacher
    teacher = bind(type(use).model_validate({**use.model_dump(), **options}), "teacher")
    supplies = {"value_of": value_of, "low": LOW, "high": HIGH, "rng": np.random.default_rng(seed)}
    supplies |= {"task_KD": np.zeros((0, 2)), "return_K": np.zeros(0)}
    return np.array([teacher.ask(0, supplies) for _ in range(count)])


def test_the_formula_is_two_subgoals_with_their_windows_and_an_invariant(plan):
    expected = Plan((Subgoal("A", 0, 10), Subgoal("B", 10, 20)), (Invariant("C", False, 0, 20),))
    assert read_plan(plan) == expected
    assert read_formula("G[2,9] Home & F[10,20] B & F[0,10] A") == Plan(
        expected.subgoals, (Invariant("Home", True, 2, 9),)
    )


@pytest.mark.parametrize(
    "text", ["", "F[0,10] A |", "F[5,2] A", "F[0,10] !A", "G[0,5] A", "F[a,b] A", "F[0,10] A & __import__('os')"]
)
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(StepError, match="formula"):
        read_formula(text)


def test_a_long_formula_is_read_in_no_time():
    with pytest.raises(StepError, match="formula"):
        read_formula("F[0,1" + " " * 10**6 + "] A &" * 10**5)


def test_all_times_lie_in_their_windows():
    def late(tasks):
        return 5 * tasks.sum(1)

    for chosen in (ask("guided", late, 200), ask("guided", None, 200), ask("chosen", late, 20)):
        assert ((chosen >= LOW) & (chosen <= HIGH)).all()


def test_a_worse_allocation_is_accepted_by_the_exponential_of_the_difference():
    """ΔV = −1 at T = 1 by .368, at T = 2 by .607; what is better always."""
    assert accept_probability(-1.0, 1.0) == pytest.approx(0.36788, abs=1e-5)
    assert accept_probability(-1.0, 2.0) == pytest.approx(0.60653, abs=1e-5)
    assert [accept_probability(difference, 1.0) for difference in (0.0, 0.1, 1000.0)] == [1.0, 1.0, 1.0]
    assert STAGES["guided"].teacher.options == {"steps": 20, "temperature": 1.0}


def test_the_chain_has_the_density_of_the_critic():
    """Values 0 for early and 1 for late times of A: late ones are e times as frequent; the times of B are even."""
    chosen = ask("guided", lambda tasks: (tasks[:, 0] > 5).astype(float), 4000)
    late = (chosen[:, 0] > 5).mean()
    assert late == pytest.approx(np.e / (1 + np.e), abs=0.025)
    assert chosen[:, 1].mean() == pytest.approx(15, abs=0.2)


def test_a_constant_critic_makes_the_chain_uniform():
    chosen = ask("guided", lambda tasks: np.full(len(tasks), 3.0), 4000)
    counts = np.histogram2d(*chosen.T, bins=4, range=[[0, 10], [10, 20]])[0]
    assert ((counts - 250) ** 2 / 250).sum() < 30.6  # the 99th percentile of χ² with 15 degrees of freedom


def test_the_allocation_that_is_played_is_the_best_of_those_that_are_drawn():
    seen = []

    def value(tasks):
        seen.append(tasks)
        return -np.abs(tasks - [7.0, 18.0]).sum(1)

    (chosen,) = ask("chosen", value, 1)
    (drawn,) = seen
    assert len(drawn) == 256
    assert np.array_equal(chosen, drawn[value(drawn).argmax()])
    assert np.abs(chosen - [7.0, 18.0]).sum() < 2
    with pytest.raises(StepError, match="critic"):
        ask("chosen", None, 1)


def test_the_reward_of_a_stage_changes_at_the_switch(world):
    """Times (8, 19): steps 1 to 8 are rewarded for coming nearer to A, from step 9 on for coming nearer to B."""
    assert world.times.tolist() == [8.0, 19.0]
    left, right = np.array([-1.0, 0.0]), np.array([1.0, 0.0])
    world.place = np.array([0.0, -1.0])
    stages, rewards = [], []
    for step in range(12):
        world.place = np.array([0.0, -1.0])
        _, reward, _, _, info = world.step(left if step % 2 else right)
        stages.append(info["stage"])
        rewards.append(reward)
    assert stages == [0] * 8 + [1] * 4
    near, far = (np.hypot(1, 1.3) - np.hypot(1 - move, 1.3) for move in (0.3, -0.3))
    assert rewards == pytest.approx([far, near] * 4 + [near, far] * 2)


def test_the_observation_shows_stage_way_and_the_time_that_is_left(world):
    shown = world.observe(np.array([0.5, 0.0]), 3, world.times)
    expected = [0.5, 0.0, -1.5, 0.3, 5 / 20, 8 / 20, 19 / 20, 1, 0]
    assert shown == pytest.approx(expected, abs=1e-6)
    later = world.observe(np.array([0.5, 0.0]), 8, world.times)
    assert later == pytest.approx([0.5, 0.0, 0.5, 0.3, 11 / 20, 8 / 20, 19 / 20, 0, 1], abs=1e-6)
    start = world.show_start(np.array([[8.2, 19.0]]))[0]
    assert np.array_equal(start, world.reset(seed=1, options={"task": np.array([8.2, 19.0])})[0])


def go(world, *places):
    """Play an episode through places, and then stay; return the rewards and whether the formula holds."""
    rewards, info = [], {}
    while world.steps < 20:
        target = np.array(places[min(world.steps, len(places) - 1)])
        _, reward, _, _, info = world.step((target - world.place) / world.stride)
        rewards.append(reward)
    return rewards, info["holds"]


def test_the_formula_holds_if_both_are_reached_in_their_windows_and_c_never_entered(world, plan):
    a, b, over, c = (-1.0, 0.3), (1.0, 0.3), (0.0, -0.9), (0.0, 0.3)

    def play(*places, make=world):
        make.reset(seed=0, options={"task": np.array([8.0, 19.0])})
        return go(make, *places)

    assert play(*[a] * 8, *[over] * 4, b)[1]
    assert not play(*[over] * 11, *[a] * 3, over, b)[1]
    assert not play(*[a] * 8, *[over] * 2, (0.9, -0.9))[1]
    rewards, holds = play(*[a] * 8, c, *[over] * 3, b)
    assert not holds
    assert min(rewards) < -0.5
    counted = bind(make_use("drawn", plan), "env")()
    assert sum(play(*[a] * 8, *[over] * 4, b, make=counted)[0]) == 1.0
    assert sum(play(*[a] * 8, c, *[over] * 3, b, make=counted)[0]) == 0.0
    good, _ = play(*[a] * 8, *[over] * 4, b)
    assert good[7] == pytest.approx(1.0, abs=0.3)  # within A at its time
    assert good[19] == pytest.approx(2.0, abs=1e-6)  # B's time is 19; the formula holds at the end


def train(name, plan, folder, **settings):
    given = STAGES[name].model_dump(exclude_unset=True) | {"env": make_use(name, plan).model_dump()}
    context = Context({}, folder / name, folder / f"{name}-c", seed=1)
    context.folder.mkdir()
    short = {"environment_steps": 320, "num_envs": 2, "rollout_steps": 40, "num_iterations": 1}
    control.run(Control.model_validate(given | short | {"learning_starts": 1} | settings), context)
    return context.output("model")


def test_training_asks_the_present_critic_and_evaluation_the_trained_one(plan, tmp_path, monkeypatch):
    """The teacher has the values of the loss's critic; the evaluation those of the saved one, for each model."""
    asked = []

    def watch(world, value):
        values = value_starts(world, value)
        asked.append(values)
        return values

    monkeypatch.setattr(control, "value_starts", watch)
    monkeypatch.setattr(evaluate_control, "value_starts", watch)
    models = {name: train(name, plan, tmp_path) for name in ("even", "guided")}
    settings = STAGES["chosen"].model_dump(exclude_unset=True) | {"env": make_use("chosen", plan).model_dump()}
    context = Context({f"models.{n}": m for n, m in models.items()}, tmp_path / "e", tmp_path / "ec", seed=1)
    context.folder.mkdir()
    evaluate_control.run(EvaluateControl.model_validate(settings | {"episodes": 2, "num_bootstrap": 100}), context)
    tasks = np.array([[3.0, 12.0], [9.0, 19.0]])
    trained, played = [asked[i](tasks) for i in range(2)], [asked[i](tasks) for i in range(2, 4)]
    assert played[0] == pytest.approx(trained[0], abs=1e-6)
    assert played[1] == pytest.approx(trained[1], abs=1e-6)
    assert not np.allclose(played[0], played[1])
    weights = load_networks(models["even"])
    seen = torch.from_numpy(bind(make_use("even", plan), "env")().show_start(tasks))
    for n in range(3):
        begin = f"critic_network_params.module.{2 * n}."
        layer = {name.removeprefix(begin): one for name, one in weights.items() if name.startswith(begin)}
        seen = seen @ layer["weight"].T + layer["bias"]
        seen = torch.tanh(seen) if n < 2 else seen
    assert played[0] == pytest.approx(seen[:, 0].numpy(), abs=1e-5)
    assert load_control_policy(models["even"]).settings.activation == "tanh"


def test_losses_without_a_critic_of_observations_give_no_values():
    class Loss:
        critic_network = None

    assert find_critic(Loss()) is None
    assert value_starts(object(), lambda shown: shown) is None


def test_functions_without_a_critic_are_not_played_by_one():
    settings = STAGES["chosen"].model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match="`policies` have none"):
        EvaluateControl.model_validate(settings | {"policies": {"random": "random"}})


def test_the_arms_differ_in_the_teacher_alone():
    guided, even = (STAGES[name].model_dump() for name in ("guided", "even"))
    assert guided.pop("teacher")["use"] == "metropolis"
    assert even.pop("teacher") == {"use": "random"}
    assert guided == even
    assert guided["loss"]["use"] == "ppo"
    drawn, chosen = (STAGES[name].model_dump(exclude={"episodes"}) for name in ("drawn", "chosen"))
    assert chosen.pop("teacher") == {"use": "best_of", "samples": 256}
    assert drawn.pop("teacher") is None
    assert drawn == chosen
    assert drawn["env"]["pays"] == "success"
    assert STAGES["plan"].function.options["formula"] == "F[0,10] A & F[10,20] B & G[0,20] !C"
