"""Kind control by imitation: what DAgger keeps, that no reward is needed, and that it continues after a kill."""

from dataclasses import replace

import numpy as np
import pytest

from learning.control import training
from learning.control.stepping.transitions import read_transitions, write_transitions
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.collect import Collect
from schemas.stages.control import Control
from tasks import collect, control
from tasks.context import Context
from tests.control_worlds import stride

CORRIDOR, LINE = "tests.control_worlds:corridor", "tests.control_worlds:line"
STRIDE, STEER = "tests.control_worlds:stride", "tests.control_worlds:steer"
SMALL = {"networks": {"hidden_sizes": [16]}, "batch_size": 16, "logging_steps": 20, "num_envs": 2}


@pytest.fixture
def run(tmp_path):
    def run(kind, module, inputs=None, name="step", **settings):
        stage = kind.model_validate({"kind": kind.model_fields["kind"].annotation.__args__[0], **settings})
        context = Context(inputs or {}, tmp_path / name, tmp_path / name / "checkpoints", seed=3)
        context.folder.mkdir(exist_ok=True)
        return tmp_path / name / "outputs", module.run(stage, context)

    return run


@pytest.fixture
def kept(monkeypatch):
    """All steps that a training keeps, by column."""
    rows, add = {}, training.Buffer.add

    def watch(self, steps):
        add(self, steps)
        rows.update({name: column[: len(self)].clone() for name, column in self.columns.items()})

    monkeypatch.setattr(training.Buffer, "add", watch)
    return rows


def test_dagger_keeps_the_experts_action_where_the_policy_went(run, kept):
    """The walker goes left and right at random; the kept action is `right` everywhere, the way is the walker's."""
    settings = {"loss": "bc", "relabel": {"use": "label_by_expert", "expert": STRIDE}, "environment_steps": 60}
    _, result = run(Control, control, env=CORRIDOR, learning_starts=60, **settings, **SMALL)
    assert kept["action"].tolist() == [1] * 60
    before, after = (kept[name].argmax(-1) for name in ("observation", "next_observation"))
    assert (after < before).any()
    assert result.metrics["updates"] == 2  # from learning_starts on, for two worlds


def test_dagger_learns_the_experts_rule_where_the_expert_never_was(run):
    """Episodes of the expert start anywhere; a policy trained on labels reaches the end from each cell."""
    labelled = {"loss": "bc", "relabel": {"use": "label_by_expert", "expert": STRIDE}, "learning_rate": 1e-2}
    _, result = run(
        Control, control, env=CORRIDOR, environment_steps=300, learning_starts=20, eval_steps=300, **labelled, **SMALL
    )
    assert result.metrics["eval_return"] == 1.0
    assert stride(np.zeros((3, 5))).tolist() == [1, 1, 1]


def test_an_expert_may_be_a_trained_policy(run, kept):
    data, _ = run(Collect, collect, env=CORRIDOR, policy=STRIDE, environment_steps=60, name="data")
    cloned = {"loss": "bc", "data": ["d"], "max_steps": 200, "learning_rate": 1e-2}
    model, _ = run(Control, control, {"data.0": data / "transitions"}, "cloned", env=CORRIDOR, **cloned, **SMALL)
    expert = {"use": "trained", "model": "cloned"}
    settings = {"loss": "bc", "relabel": {"use": "label_by_expert", "expert": expert}, "environment_steps": 40}
    inputs = {"relabel.expert.model": model / "model"}
    run(Control, control, inputs, "asked", env=CORRIDOR, learning_starts=20, **settings, **SMALL)
    assert kept["action"].tolist() == [1] * 40


def test_actions_of_another_are_refused_on_policy_and_unknown_columns_everywhere(run, monkeypatch):
    settings = {"relabel": {"use": "label_by_expert", "expert": STRIDE}, "environment_steps": 40}
    with pytest.raises(StepError, match="loss ppo needs those that the policy took"):
        run(Control, control, env=CORRIDOR, loss="ppo", learning_starts=20, **settings, **SMALL)
    monkeypatch.setattr(
        "learning.control.policies.relabelling.label_by_expert", lambda observation_NO, *, expert: {"x": 1}
    )
    with pytest.raises(StepError, match="it gives x; it may give action and reward"):
        run(Control, control, env=CORRIDOR, loss="bc", name="other", learning_starts=20, **settings, **SMALL)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"reward": [1.0]}, r"its reward must be \(2,\) finite numbers"),
        ({"reward": [1.0, float("nan")]}, r"its reward must be \(2,\) finite numbers"),
        ({"action": [0, 2]}, r"its action must be \(2,\) finite numbers from 0 to 1, and is \[0, 2\]"),
        ({"action": [[0], [1]]}, r"its action must be \(2,\) finite numbers"),
    ],
    ids=str,
)
def test_relabelled_columns_that_do_not_fit_are_refused(column, message, run, monkeypatch):
    """One reward for two worlds would have been both worlds' reward."""
    monkeypatch.setattr(
        "learning.control.policies.relabelling.label_by_expert", lambda observation_NO, *, expert: column
    )
    settings = {"loss": "bc", "relabel": {"use": "label_by_expert", "expert": STRIDE}, "environment_steps": 40}
    with pytest.raises(StepError, match=message):
        run(Control, control, env=CORRIDOR, learning_starts=20, **settings, **SMALL)


def test_inverse_q_of_another_loss_is_refused(run):
    """The soft actor-critic of choices has no values that the term could read; it failed with a KeyError."""
    data, _ = run(Collect, collect, env=CORRIDOR, policy=STRIDE, environment_steps=40, name="data")
    settings = {"data": ["d"], "environment_steps": 40, "loss_terms": {"loss_qvalue": "inverse_q"}}
    inputs = {"data.0": data / "transitions"}
    with pytest.raises(StepError, match="inverse_q replaces `loss` of dqn for choices"):
        run(Control, control, inputs, env=CORRIDOR, loss="sac", learning_starts=20, **settings, **SMALL)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("gail", CORRIDOR, {"rollout_steps": 10, "num_iterations": 2, "learning_starts": 20}),
        ("airl", LINE, {"rollout_steps": 10, "num_iterations": 2, "learning_starts": 20}),
        ("dagger", LINE, {"relabel": {"use": "label_by_expert", "expert": STEER}, "learning_starts": 20}),
        ("iq", CORRIDOR, {"learning_starts": 20}),
        ("iq_sac", LINE, {"learning_starts": 20}),
    ],
)
def test_an_interrupted_imitation_ends_with_the_same_bits(algorithm, env, settings, run, monkeypatch, tmp_path):
    """And no reward changes a bit of it: neither that of the demonstrations nor that of the world."""
    policy = STRIDE if env == CORRIDOR else STEER
    data, _ = run(Collect, collect, env=env, policy=policy, environment_steps=40, name="data")
    preset = read_preset(tmp_path, algorithm, env, settings)
    inputs = {} if algorithm == "dagger" else {"data.0": data / "transitions"}
    given = {**preset, "env": env, "environment_steps": 120, "save_steps": 40, "eval_steps": None} | SMALL
    given |= {"data": list(inputs) and ["d"], "data_share": None if algorithm != "iq" else 0.5}
    whole, first = run(Control, control, inputs, "whole", **given)
    iterate, stop = training.ControlLoop.iterate, {"after": 2 if algorithm in ("gail", "airl") else 30}

    def interrupt(self, iteration):
        if iteration > stop["after"]:
            raise KeyboardInterrupt
        iterate(self, iteration)

    monkeypatch.setattr(training.ControlLoop, "iterate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(Control, control, inputs, "cut", **given)
    stop["after"] = 10_000
    cut, second = run(Control, control, inputs, "cut", **given)
    assert first.metrics["updates"] > 0
    demonstrations = read_transitions(data / "transitions")
    write_transitions(data / "transitions", replace(demonstrations, reward=demonstrations.reward + 1e6))
    step = training.Worlds.step
    monkeypatch.setattr(
        training.Worlds, "step", lambda self, a: (s := step(self, a)) and replace(s, reward=s.reward - 7)
    )
    paid, _ = run(Control, control, inputs, "paid", **given)
    for file in ("actor.safetensors", "networks.safetensors"):
        for other in (cut, paid):
            assert (whole / "model" / file).read_bytes() == (other / "model" / file).read_bytes(), (file, other)
    assert first.metrics == second.metrics


def read_preset(folder, algorithm, env, settings):
    """The settings of a preset in a recipe, with others on top."""
    import yaml

    stage = {"kind": "control", "algorithm": algorithm, "env": env, "environment_steps": 120, "data": ["path:./d"]}
    stage |= settings
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": {"policy": stage}}))
    dumped = load_recipe(folder / "recipe.yaml").stages["policy"].model_dump(exclude_unset=True)
    return {name: value for name, value in dumped.items() if name not in ("kind", "algorithm")}
