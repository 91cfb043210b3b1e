"""Learning to fly: critics see more than the actor, weights grow with all kept rewards, the exported actor is the same.

Not shown: 18 seconds of training, real flight.
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from learning.control import training
from learning.control.networks.build import Networks
from learning.control.policies.exports import export_as_c
from learning.control.policies.policy import ControlPolicy, act, load_control_policy
from learning.control.rewards.weighted_costs import add_costs, grow
from learning.control.stepping.spaces import read_spaces
from learning.control.worlds.quadrotors import SEEN, flight_costs
from learning.lookup import bind
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks import control, python
from tasks.context import Context

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/learning-to-fly.yaml").stages
FLYING = STAGES["flying"]
MAKE = bind(STAGES["report"].env, "env")
SPACES = read_spaces(MAKE())
SHORT = {"environment_steps": 60, "learning_starts": 20, "batch_size": 16}


@pytest.fixture(scope="module")
def algorithm():
    torch.manual_seed(0)
    return bind(FLYING.loss, "loss")(Networks(SPACES, FLYING.networks))


def look(observation):
    return TensorDict({"observation": torch.from_numpy(observation)}, [len(observation)])


def test_the_disturbance_changes_the_value_and_not_a_bit_of_the_action(algorithm):
    seen = np.random.default_rng(0).normal(size=(32, SPACES.observations)).astype(np.float32)
    loss = algorithm.loss
    for number in range(SEEN, SPACES.observations):
        changed = seen.copy()
        changed[:, number] += 1.0
        before, after = (act(algorithm.actor, shown, explore=False) for shown in (seen, changed))
        assert np.array_equal(before, after)
        with torch.no_grad(), loss.qvalue_network_params[0].to_module(loss.qvalue_network):
            batches = [look(shown).set("action", torch.from_numpy(before)) for shown in (seen, changed)]
            values = [loss.qvalue_network(batch)["state_action_value"] for batch in batches]
        assert (values[0] != values[1]).all()
    changed = seen.copy()
    changed[:, SEEN - 1] += 1.0
    assert (act(algorithm.actor, changed, explore=False) != act(algorithm.actor, seen, explore=False)).any()
    assert SPACES.observations - FLYING.networks.privileged == SEEN == 15


def test_critics_alone_see_the_disturbance_and_the_rotors():
    shown = {}
    for name in ("flying", "blind"):
        world = bind(STAGES[name].env, "env")()
        first, _ = world.reset(seed=4)
        for _ in range(3):
            shown[name] = world.step(np.array([0.5, -0.5]))[0]
        assert np.array_equal(first[7:15], np.zeros(8))
        beside = [*world.disturbance, *world.thrusts] if name == "flying" else [0.0] * 5
        assert shown[name][15:] == pytest.approx(beside, abs=1e-6)
        assert shown[name][7:13].tolist() == [0.5, -0.5] * 3
        assert np.abs(world.disturbance).min() > 0
    assert np.array_equal(shown["flying"][:15], shown["blind"][:15])


def test_a_step_of_flight_by_hand():
    """Thrust .5 on one side after a lag of .06 s: 1/3 of the way in .02 s; the tilt turns."""
    world = MAKE()
    world.reset(seed=0)
    world.place, world.velocity, world.disturbance = np.zeros(2), np.zeros(2), np.array([0.1, 0.2, 0.3])
    world.tilt, world.turning, world.thrusts = 0.0, 0.0, np.zeros(2)
    world.step(np.array([-0.3, 0.6]))
    assert world.thrusts == pytest.approx([-0.1, 0.2])
    left, right = 9.81 / 2 * 0.9, 9.81 / 2 * 1.2
    assert world.velocity == pytest.approx([0.02 * 0.1, 0.02 * (left + right - 9.81 + 0.2)])
    assert world.turning == pytest.approx(0.02 * (0.1 * (right - left) / 0.02 + 0.3))
    assert world.tilt == pytest.approx(0.02 * world.turning)
    world.place = np.array([2.1, 0.0])
    assert world.step(np.zeros(2))[2]


def test_a_step_of_the_curriculum_by_hand():
    """Position 5 to 6 (times 1.2, at most its limit), action .9 to 1 (times 1.4 is 1.26, at most 1)."""
    assert [grow(5, 1.2, 40, n) for n in (0, 1, 2)] == pytest.approx([5, 6, 7.2])
    assert grow(5, 1.2, 40, 12) == 40
    assert [grow(0.9, 1.4, 1.0, n) for n in (0, 1)] == [0.9, 1.0]
    assert grow(1.0, 0.5, 0.2, 5) == 0.2
    weights = FLYING.relabel.options["weights"]
    assert {name: grow(*given, 1) for name, given in weights.items()} == pytest.approx(
        {"position": 6.0, "velocity": 0.7, "tilt": 2.5, "action": 1.0}
    )
    assert weights["position"][:2] == [5, 1.2]
    assert weights["action"] == [0.9, 1.4, 1.0]


def test_rewards_are_weighted_costs_at_the_step():
    """One place: (.1, .2) off, velocity (.3, 0), cosine .9, action (.5, .5)."""
    shown = np.zeros((1, SPACES.observations), np.float32)
    shown[0, :6] = [0.1, 0.2, 0.3, 0.0, 0.0, 0.9]
    relabel = bind(FLYING.relabel, "relabel")
    every = FLYING.relabel_every
    for step, (position, velocity, action) in {0: (5, 0.5, 0.9), every - 1: (5, 0.5, 0.9), every: (6, 0.7, 1)}.items():
        supplies = {"action_N": np.full((1, 2), 0.5), "next_observation_NO": shown, "step": step}
        made = relabel.ask(step, {**supplies, "observation_NO": shown})["reward"]
        cost = position * 0.05 + velocity * 0.09 + 2.5 * 0.1 + action * 0.5
        assert made == pytest.approx([0.5 * (2 - cost)], abs=1e-6)
    assert add_costs({"position": np.array([9.0])}, {"position": 5.0}).tolist() == [0.0]
    assert FLYING.relabel.options["every"] == every == 1000


def test_the_world_pays_by_the_last_weights():
    world = MAKE()
    world.reset(seed=0)
    shown, reward, *_ = world.step(np.array([0.2, 0.1]))
    limits = {name: given[2] for name, given in FLYING.relabel.options["weights"].items()}
    costs = flight_costs(shown[None], np.array([[0.2, 0.1]]))
    assert world.weights == limits
    assert reward == pytest.approx(float(add_costs(costs, limits)[0]), abs=1e-6)


def test_all_kept_rewards_are_computed_anew_when_the_weights_grow(tmp_path, monkeypatch):
    """Weights grow every 25 steps: after 25 and 50 every kept reward is that of the present weights."""
    seen, relabel_kept = [], training.ControlLoop.relabel_kept

    def look_at(loop, iteration):
        before = loop.buffer.get_steps()
        relabel_kept(loop, iteration)
        seen.append((iteration, before, loop.buffer.get_steps()))

    monkeypatch.setattr(training.ControlLoop, "relabel_kept", look_at)
    settings = FLYING.model_dump(exclude_unset=True) | SHORT | {"relabel_every": 25}
    stage = Control.model_validate(settings | {"relabel": {**settings["relabel"], "every": 25}})
    context = Context({}, tmp_path / "step", tmp_path / "c", seed=1)
    context.folder.mkdir()
    control.run(stage, context)
    assert [(iteration, len(after.reward)) for iteration, _, after in seen] == [(25, 25), (50, 50)]
    weights = FLYING.relabel.options["weights"]
    for iteration, before, after in seen:
        for steps, times in ((before, iteration // 25 - 1), (after, iteration // 25)):
            now = {name: grow(*given, times) for name, given in weights.items()}
            costs = flight_costs(steps.next_observation, steps.action)
            assert steps.reward == pytest.approx(add_costs(costs, now), abs=1e-5)
        assert not np.array_equal(before.reward, after.reward)
        assert np.array_equal(before.action, after.action)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "ppo", "rollout_steps": 16}, "keeps steps"),
        ({"relabel": {"use": "weigh_costs", "costs": "flight_costs", "weights": {"height": [1, 1, 1]}}}, "height"),
        ({"networks": {"privileged": 20}}, "leaves the actor none"),
    ],
)
def test_what_cannot_be_done_is_refused(change, message, tmp_path):
    context = Context({}, tmp_path / "step", tmp_path / "c", seed=1)
    context.folder.mkdir()
    settings = {
        "kind": "control",
        "env": FLYING.env.model_dump(),
        "loss": "td3",
        "relabel": FLYING.relabel.model_dump(),
    }
    with pytest.raises(StepError, match=message):
        control.run(Control.model_validate(settings | SHORT | {"relabel_every": 25} | change), context)


def test_values_that_are_the_actor_cannot_see_more():
    with pytest.raises(StepError, match="privileged needs an actor"):
        Networks(SPACES, FLYING.networks).make_choice_values()


@pytest.fixture
def exported(algorithm, tmp_path):
    """A policy of the recipe's form, and its program."""
    (tmp_path / "policy").mkdir()
    policy = ControlPolicy(SPACES, FLYING.networks, algorithm.actor_form, algorithm.actor)
    policy.save(tmp_path / "policy", {})
    context = Context({"inputs.policy": tmp_path / "policy"}, tmp_path / "c", tmp_path / "d", seed=1)
    context.folder.mkdir()
    metrics = python.run(STAGES["firmware"], context).metrics
    assert metrics["parameters"] == 15 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    return load_control_policy(tmp_path / "policy"), context.output("result") / "policy.c"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_exported_actor_compiled_acts_the_same(exported, tmp_path):
    policy, program = exported
    library = tmp_path / "policy.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-o", library, program, "-lm"], check=True)
    function = ctypes.CDLL(str(library)).act
    seen = np.random.default_rng(1).normal(size=(50, SPACES.observations)).astype(np.float32)
    expected = policy.act(seen, explore=False)
    for shown, wanted in zip(seen, expected, strict=True):
        made, given = (ctypes.c_float * 2)(), (ctypes.c_float * SEEN)(*shown[:SEEN])
        function(given, made)
        assert list(made) == pytest.approx(wanted.tolist(), abs=1e-6)


def test_the_exported_numbers_are_those_of_the_policy(exported):
    """Read from the text, and applied by NumPy."""
    policy, program = exported
    found = re.findall(r"const float (\w+)\[\] = \{(.*?)\}", program.read_text())
    arrays = {name: np.array([float(number.strip().rstrip("f")) for number in text.split(",")]) for name, text in found}
    seen = np.random.default_rng(2).normal(size=(20, SPACES.observations)).astype(np.float32)
    layer = seen[:, :SEEN].astype(float)
    for n in range(3):
        bias = arrays[f"bias_{n}"]
        layer = layer @ arrays[f"weight_{n}"].reshape(len(bias), -1).T + bias
        layer = np.tanh(layer)
    low, high = arrays["low"], arrays["high"]
    assert low + (high - low) * (layer + 1) / 2 == pytest.approx(policy.act(seen, explore=False), abs=1e-6)


def test_other_actors_are_not_exported(tmp_path):
    networks = Networks(SPACES, FLYING.networks)
    (tmp_path / "policy").mkdir()
    policy = ControlPolicy(SPACES, FLYING.networks, "make_stochastic_actor", networks.make_stochastic_actor())
    policy.save(tmp_path / "policy", {})
    with pytest.raises(StepError, match="td3"):
        export_as_c(Context({"policy": tmp_path / "policy"}, tmp_path / "c", tmp_path / "d", seed=1))


def test_the_arms_differ_in_what_critics_see_or_in_the_weights():
    flying, blind, fixed = (STAGES[name].model_dump() for name in ("flying", "blind", "fixed"))
    assert blind.pop("env")["blind"] is True
    assert {**flying, "env": None} == {**blind, "env": None}
    weights = fixed["relabel"].pop("weights")
    limits = {name: given[2] for name, given in flying["relabel"].pop("weights").items()}
    assert {name: given[0] for name, given in weights.items()} == limits
    assert {name: given[2] for name, given in weights.items()} == limits
    assert flying == fixed
    assert flying["loss"]["use"] == "td3"
    assert flying["environment_steps"] == 8000
    assert dict(STAGES["report"].models) == {name: name for name in ("fixed", "blind", "flying")}
