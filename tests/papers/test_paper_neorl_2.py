"""NeoRL-2: torques act late, no action changes the wind, limits cost, training makes no world, equals beat nothing.

Not shown: the 7 industrial tasks with their data sets.
"""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from learning.control.stepping import worlds as worlds_module
from learning.control.stepping.spaces import read_spaces
from learning.control.stepping.transitions import read_transitions
from learning.lookup import bind
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from schemas.stages.evaluate_control import EvaluateControl
from tasks import collect, control, evaluate_control, python
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/neorl-2.yaml")
STAGES = RECIPE.stages
METHODS = ("bc", "td3_bc", "iql", "cql")
MAKE, COUNTED = (bind(STAGES[name].env, "env") for name in ("report", "limits"))


def play(actions, make=MAKE, seed=3):
    """Observations, rewards and what was flagged, of one episode with these actions."""
    world = make()
    seen, paid, flags = [world.reset(seed=seed)[0]], [], []
    for action in actions:
        observation, reward, *_, info = world.step(np.array([action]))
        seen.append(observation)
        paid.append(reward)
        flags.append(info)
    return np.array(seen), np.array(paid), flags, world


def test_an_action_first_shows_four_steps_later():
    """a_5 differs: s_6, s_7 and s_8 are the same, s_9 is another; so are the rewards before it."""
    actions = np.linspace(-0.4, 0.4, 20)
    changed = actions.copy()
    changed[5] += 0.5
    (first, earned, *_), (second, other, *_) = play(actions), play(changed)
    assert np.array_equal(first[:9], second[:9])
    assert np.array_equal(earned[:8], other[:8])
    assert first[9][2] != second[9][2]
    assert second[9][2] - first[9][2] == pytest.approx(0.05 * 4.0 * 0.5, abs=1e-6)


def test_a_step_is_one_of_euler_by_hand():
    """From angle 0.1 and speed 0.2 in a wind of 0.3 with torque 0.5: speed rises by 0.05 (3 sin 0.1 + 2 + 0.3)."""
    world = MAKE()
    world.reset(seed=0)
    world.angle, world.speed, world.waiting = 0.1, 0.2, [0.5, 0.0, 0.0]
    world.winds[0] = 0.3
    observation, reward, *_ = world.step(np.array([-1.0]))
    speed = 0.2 + 0.05 * (3 * np.sin(0.1) + 2.0 + 0.3)
    angle = 0.1 + 0.05 * speed
    assert observation[:3] == pytest.approx([np.cos(angle), np.sin(angle), speed], abs=1e-6)
    assert reward == pytest.approx(-(angle**2 + 0.1 * speed**2 + 0.01 * 0.25))
    assert world.waiting == [0.0, 0.0, -1.0]


def test_the_wind_is_the_same_whatever_is_done():
    rng = np.random.default_rng(0)
    blown = [play(actions)[0][:, 3] for actions in (np.zeros(60), np.ones(60), rng.uniform(-1, 1, 60))]
    assert np.array_equal(blown[0], blown[1])
    assert np.array_equal(blown[0], blown[2])
    assert np.ptp(blown[0]) > 0.3
    assert not np.array_equal(blown[0], play(np.zeros(60), seed=4)[0][:, 3])
    winds = np.stack([play([], seed=seed)[3].winds for seed in range(200)])
    gusts = winds[:, 1:] - 0.9 * winds[:, :-1]
    assert gusts.std() == pytest.approx(0.3, rel=0.02)
    assert (winds[:, 0] == 0).all()


@pytest.mark.parametrize(("angle", "violated"), [(0.51, True), (-0.51, True), (0.45, False), (-0.45, False)])
def test_a_step_beyond_the_limit_is_flagged_and_costs_one(angle, violated):
    results = []
    for make in (MAKE, COUNTED):
        world = make()
        world.reset(seed=0)
        world.angle, world.speed = angle, 0.0
        results.append((*world.step(np.zeros(1))[1::3], world))
    (earned, info, world), (counted, same, _) = results
    assert info == same == {"violated": violated, "cost": float(violated)}
    assert counted == float(violated)
    assert earned == pytest.approx(-(world.angle**2) - 0.1 * world.speed**2 - float(violated))
    assert STAGES["report"].env.options["widest"] == STAGES["limits"].env.options["widest"] == 0.5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The recipe's data, fewer of them."""
    folder = tmp_path_factory.mktemp("neorl")
    context = Context({}, folder / "data", folder / "c", seed=1)
    context.folder.mkdir()
    collect.run(STAGES["data"].model_copy(update={"environment_steps": 300}), context)
    return context.output("transitions")


def train(name, data, folder):
    context = Context({"data.0": data}, folder / name, folder / f"{name}-c", seed=1)
    context.folder.mkdir()
    short = {"max_steps": 2, "batch_size": 16}
    control.run(STAGES[name].model_copy(update=short), context)
    return context.output("model")


def test_the_data_are_those_of_a_careful_rule_with_little_noise(data):
    given = read_transitions(data)
    spaces = read_spaces(MAKE())
    angle_T = np.arctan2(given.observation[:, 1], given.observation[:, 0])
    rule_T = -(1.2 * angle_T + 0.5 * given.observation[:, 2])
    noise_T = given.action[:, 0] - np.clip(rule_T, -1, 1)
    assert noise_T[np.abs(rule_T) < 0.6].std() == pytest.approx(0.1, rel=0.2)
    made = bind(STAGES["report"].policies["behaviour"], "policy").ask(
        0, {"observation_NO": given.observation, "spaces": spaces}
    )
    assert made[:, 0] == pytest.approx(np.clip(rule_T, -1, 1), abs=1e-5)
    assert STAGES["data"].policy == STAGES["report"].policies["behaviour"]


@pytest.mark.parametrize("name", METHODS)
def test_training_makes_no_world(name, data, tmp_path, monkeypatch):
    """A world that is made while training ends the test; with `env` it would be."""

    def refuse(*_):
        raise StepError("a world was made")

    monkeypatch.setattr(worlds_module.Worlds, "__init__", refuse)
    assert (train(name, data, tmp_path) / "actor.safetensors").is_file()
    with_world = Control.model_validate({**STAGES[name].model_dump(exclude_unset=True), "env": "Pendulum-v1"})
    context = Context({"data.0": data}, tmp_path / "env", tmp_path / "e", seed=1)
    with pytest.raises(StepError, match="a world was made"):
        control.run(with_world, context)


@pytest.mark.parametrize("setting", [{"eval_steps": 10}, {"environment_steps": 2000, "max_steps": None}])
def test_a_stage_that_would_act_is_refused_without_a_world(setting):
    settings = STAGES["td3_bc"].model_dump(exclude_unset=True) | setting
    with pytest.raises(ValidationError, match="need `env`"):
        Control.model_validate(settings)


def test_only_what_is_better_beyond_doubt_beats_the_behaviour(data, tmp_path):
    """The rule again does not, nor does a clone of two updates; a rule with a higher gain does."""
    rule = STAGES["report"].policies["behaviour"].model_dump()
    settings = STAGES["report"].model_dump(exclude_unset=True) | {
        "policies": {"behaviour": rule, "again": rule, "firmer": {"use": "steady", "gain": 2.0, "damping": 0.8}},
        "models": {"bc": "bc"},
        "episodes": 8,
        "num_bootstrap": 200,
    }
    report = Context({"models.bc": train("bc", data, tmp_path)}, tmp_path / "report", tmp_path / "r", seed=1)
    report.folder.mkdir()
    table = evaluate_control.run(EvaluateControl.model_validate(settings), report).details["table"]
    assert [line["model"] for line in table] == ["behaviour", "again", "firmer", "bc"]
    assert table[0]["value"] == table[1]["value"]
    verdict = Context({"inputs.report": report.output("report")}, tmp_path / "verdict", tmp_path / "v", seed=1)
    verdict.folder.mkdir()
    judged = python.run(STAGES["verdict"], verdict).metrics
    beats = {"beats_behaviour.again": False, "beats_behaviour.firmer": True, "beats_behaviour.bc": False}
    assert judged == {**beats, "share": pytest.approx(1 / 3)}


def test_a_report_without_the_behaviour_is_refused(tmp_path):
    (tmp_path / "results.json").write_text('{"comparisons": []}')
    context = Context({"inputs.report": tmp_path}, tmp_path / "verdict", tmp_path / "v", seed=1)
    with pytest.raises(StepError, match="first name"):
        python.run(STAGES["verdict"], context)


def test_all_methods_see_the_same_data_and_take_as_many_updates():
    arms = [STAGES[name] for name in METHODS]
    assert {(tuple(arm.data), arm.max_steps, arm.env) for arm in arms} == {(("data",), 1000, None)}
    assert [arm.loss.use for arm in arms] == list(METHODS)
    for name in ("report", "limits"):
        assert dict(STAGES[name].models) == {method: method for method in METHODS}
    assert bind(STAGES["data"].env)().delay == MAKE().delay == COUNTED().delay == 3
