"""GEM: the equations of the series motor, dead times of the converter, the same references for both controllers.

Not shown: models of PMSM and the ranking of the controllers.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import make_batch
from learning.control.networks.build import Networks
from learning.control.policies.playing import play
from learning.control.stepping.spaces import read_spaces
from learning.control.stepping.worlds import Worlds
from learning.control.worlds.motors import FASTEST, MOST, Converter, SeriesMotor
from learning.lookup import bind
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/gym-electric-motor.yaml").stages
MAKE = bind(STAGES["report"].env, "env")
SPACES = read_spaces(MAKE())


def test_one_step_of_euler_by_hand():
    """L = R = 1, L' = .1, u = 2, i = 1, ω = 5: di/dt = 2 − 1 − .5 = .5; torque .1, load .04, J = 2: dω/dt = .03."""
    motor = SeriesMotor(inductance=1.0, resistance=1.0, coupling=0.1, inertia=2.0)
    assert motor.compute_torque(1.0) == pytest.approx(0.1)
    current, speed = motor.advance(1.0, 5.0, voltage=2.0, load=0.04, seconds=0.01)
    assert current == pytest.approx(1.005)
    assert speed == pytest.approx(5.0003)
    assert motor.advance(0.0, 0.0, voltage=-1.0, load=1.0, seconds=0.01) == (0.0, 0.0)


@pytest.mark.parametrize("dead", [0, 1, 3])
def test_a_new_command_acts_after_exactly_the_dead_time(dead):
    """On at 2, off at 8, in a converter of 20 volts: as the ideal one, `dead` steps later."""
    commands = [0, 0] + [1] * 6 + [0] * 6
    converter = Converter(20.0, dead)
    given = [converter.switch(command) for command in commands]
    assert given == [20.0 * (2 + dead <= step < 8 + dead) for step in range(14)]


def test_a_command_that_is_taken_back_within_the_dead_time_never_acts():
    converter = Converter(20.0, 2)
    assert [converter.switch(command) for command in (0, 1, 0, 0, 0, 1, 1, 1)] == [0.0] * 7 + [20.0]


def test_a_period_has_the_voltage_of_its_share_less_the_dead_time():
    """A share of .6 is 6 of 10 steps; a dead time of 1 puts off both ends, so that the last step is late."""
    world = MAKE()
    world.reset(seed=0)
    applied, switch = [], world.converter.switch
    world.converter.switch = lambda command: applied.append(switch(command)) or applied[-1]
    world.step(np.array([0.6]))
    world.step(np.array([0.0]))
    assert applied == [0.0] + [20.0] * 6 + [0.0] * 13
    assert world.dead == 1
    assert world.noise == 0.01


def test_both_controllers_follow_the_same_reference():
    """Whatever they do: the references of the report's episodes are those of the seed."""
    traces, pi = {}, bind(STAGES["report"].policies["pi"], "pi")
    for name in ("pi", "held"):
        worlds, seen = Worlds(MAKE, 1, 1, "report.0"), []
        for _ in range(99):
            seen.append(float(worlds.observation[0, 2]))
            followed = pi.ask(0, {"observation_NO": worlds.observation, "spaces": SPACES})
            worlds.step(followed if name == "pi" else np.full((1, 1), 0.2))
        traces[name] = seen
    assert traces["pi"] == traces["held"]
    levels = np.unique(traces["pi"])
    assert len(levels) == 3
    assert ((levels * FASTEST >= 5) & (levels * FASTEST <= 22)).all()
    worlds = Worlds(MAKE, 1, 1, "report.1")
    assert worlds.observation[0, 2] != traces["pi"][0]


def test_the_report_gives_the_controllers_the_same_starts(monkeypatch):
    seen = []

    class Holding:
        def __init__(self, share):
            self.share = share

        def begin(self, count):
            return self

        def act(self, observation_NO, *, explore):
            seen.append((self.share, float(observation_NO[0, 2])))
            return np.full((1, 1), self.share, np.float32)

        def see(self, steps):
            pass

    for share in (0.1, 0.3):
        play(MAKE, Holding(share), range(2), 1, "report")
    assert [ref for share, ref in seen if share == 0.1] == [ref for share, ref in seen if share == 0.3]


def test_the_pi_controller_by_hand():
    """Error .1 · 60 + .05 · 40 = 8 is more than 7: (.5 + .1 · 25 · .4) · 7 + 2 · (7 − 10 · .3) = 18.5 of 20 volts."""
    rule = bind(STAGES["report"].policies["pi"], "pi")
    seen = np.array([[0.4, 0.3, 0.5, 0.05], [0.4, 0.3, 0.42, 0.05]], np.float32)
    made = rule.ask(0, {"observation_NO": seen, "spaces": SPACES})
    wanted = 60 * 0.02 + 40 * 0.05
    assert made[:, 0] == pytest.approx([18.5 / 20, (1.5 * wanted + 2 * (wanted - 3)) / 20], abs=1e-5)


def test_the_pi_controller_follows_and_a_full_voltage_breaks_the_motor():
    world = MAKE()
    for seed in range(3):
        seen, _ = world.reset(seed=seed)
        errors, rule = [], bind(STAGES["report"].policies["pi"], "pi")
        for _ in range(40):
            seen, _, broken, *_ = world.step(rule.ask(0, {"observation_NO": seen[None], "spaces": SPACES})[0])
            errors.append(abs(world.references[world.steps - 1] - world.speed))
            assert not broken
        assert np.mean(errors[-15:]) < 1.0
    world.reset(seed=0)
    world.current = 7.9
    _, reward, broken, *_ = world.step(np.array([1.0]))
    assert broken
    assert reward == pytest.approx(-abs(world.references[0] - world.speed) / FASTEST - 10)


def test_observations_are_measured_with_noise_and_the_sum_of_errors():
    world = MAKE()
    world.reset(seed=0)
    world.speed, world.current = 5.0, 2.0
    shown, _, _, _, info = world.step(np.array([0.0]))
    clean = np.array([world.speed / FASTEST, world.current / MOST])
    assert shown[:2] == pytest.approx(clean + world.noises[1], abs=1e-6)
    assert world.noises.std() == pytest.approx(0.01, rel=0.2)
    error = (info["reference"] - world.speed) / FASTEST
    assert shown[3] == pytest.approx(10 * 0.002 * error, abs=1e-6)


def test_ddpg_by_its_formula():
    """y = r + γ(1 − d) Q'(s', π'(s')): the loss of the recipe against networks called by hand."""
    torch.manual_seed(0)
    networks = Networks(SPACES, STAGES["ddpg"].networks)
    algorithm = bind(STAGES["ddpg"].loss, "loss")(networks)
    columns = {
        "observation": torch.randn(6, 4),
        "action": torch.rand(6, 1),
        "reward": torch.randn(6, 1),
        "next_observation": torch.randn(6, 4),
        "terminated": torch.tensor([[False], [True]] * 3),
        "truncated": torch.zeros(6, 1, dtype=torch.bool),
    }
    losses = {name: term.detach() for name, term in algorithm.loss(make_batch(columns)).items() if term.ndim == 0}
    loss = algorithm.loss

    def value(shown, action):
        with loss.value_network_params.to_module(loss.value_network):
            return loss.value_network(shown, action)

    actor = algorithm.actor
    now, then = columns["observation"], columns["next_observation"]
    with torch.no_grad():
        ended = columns["terminated"].float()
        target = columns["reward"] + 0.95 * (1 - ended) * value(then, actor(_as_batch(then))["action"])
        expected = (value(now, columns["action"]) - target).square().mean()
        of_actor = -value(now, actor(_as_batch(now))["action"]).mean()
    assert float(losses["loss_value"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(losses["loss_actor"]) == pytest.approx(float(of_actor), rel=1e-5)
    assert algorithm.terms == ("loss_actor", "loss_value")


def _as_batch(shown):
    from tensordict import TensorDict

    return TensorDict({"observation": shown}, [len(shown)])


def test_the_report_has_the_learner_and_the_controllers():
    report, arm = STAGES["report"], STAGES["ddpg"]
    assert {name: use.use for name, use in report.policies.items()} == {"random": "random", "pi": "cascaded_pi"}
    assert dict(report.models) == {"ddpg": "ddpg"}
    assert (arm.loss.use, arm.environment_steps, arm.exploration.use) == ("ddpg", 6000, "gaussian")
    assert arm.env == report.env
