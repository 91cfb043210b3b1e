"""Policies of kind control that remember, and those that learn from imagined steps, from stage to stage."""

import pytest

from learning.control.stepping.transitions import read_transitions
from schemas.errors import StepError
from schemas.stages.collect import Collect
from schemas.stages.control import Control
from schemas.stages.evaluate_control import EvaluateControl
from tasks import collect, control, evaluate_control
from tasks.context import Context

TALLY = "tests.control_worlds:tally"
NETWORKS = {"hidden_sizes": [16], "context": 4, "longest_episode": 4}


def execute(folder, kind, module, inputs=None, **settings):
    stage = kind.model_validate({"kind": module.__name__.removeprefix("tasks."), **settings})
    folder.mkdir()
    return module.run(stage, Context(inputs or {}, folder, folder / "checkpoints", seed=3))


@pytest.mark.parametrize("target", [1.0, 6.0])
def test_a_decision_transformer_earns_the_return_that_it_is_asked_for(target, tmp_path):
    """Random data hold all sums from 0 to 8; in worlds side by side each episode is remembered by itself."""
    execute(tmp_path / "data", Collect, collect, env=TALLY, policy="random", environment_steps=1200)
    data = {"data.0": tmp_path / "data/outputs/transitions"}
    settings = {"data": ["d"], "max_steps": 400, "batch_size": 64, "learning_rate": 5e-3, "networks": NETWORKS}
    loss = {"use": "decision_transformer", "target_return": target}
    execute(tmp_path / "trained", Control, control, data, env=TALLY, loss=loss, **settings)
    model = tmp_path / "trained/outputs/model"
    asked = {"env": TALLY, "models": {"trained": "m"}, "episodes": 2, "num_bootstrap": 100}
    result = execute(tmp_path / "report", EvaluateControl, evaluate_control, {"models.trained": model}, **asked)
    assert result.metrics["mean_return"] == target
    asked = {"env": TALLY, "model": "m", "explore": False, "num_envs": 3, "episodes": 6}
    execute(tmp_path / "again", Collect, collect, {"model": model}, **asked)
    assert read_transitions(tmp_path / "again/outputs/transitions").compute_returns().tolist() == [target] * 6
    asked = {"env": TALLY, "policy": {"use": "trained", "model": "m"}, "episodes": 1}
    with pytest.raises(StepError, match="remembers its episode"):
        execute(tmp_path / "expert", Collect, collect, {"policy.model": model}, **asked)


def test_a_loss_on_data_alone_and_one_that_draws_its_batches_refuse_other_settings(tmp_path):
    settings = {"env": TALLY, "environment_steps": 20, "learning_starts": 5}
    with pytest.raises(StepError, match="decision_transformer trains on data alone"):
        execute(tmp_path / "online", Control, control, loss="decision_transformer", **settings)
    settings |= {"env": "tests.control_worlds:line", "priority": "td_error"}
    with pytest.raises(StepError, match="mbpo draws its batches itself"):
        execute(tmp_path / "drawn", Control, control, loss="mbpo", **settings)


@pytest.mark.parametrize("loss", ["qmix", "mappo"])
def test_a_team_is_collected_trained_and_evaluated(loss, tmp_path):
    """From random data of the two-step game to 8, which only the best pair earns; PPO finds at least the safe 7."""
    world = {"env": {"use": "two_step"}}
    execute(tmp_path / "data", Collect, collect, policy="random", environment_steps=200, **world)
    given = read_transitions(tmp_path / "data/outputs/transitions")
    assert given.action.shape == (200, 2)
    settings: dict = {"loss": loss, "networks": {"hidden_sizes": [16]}, "learning_rate": 1e-2}
    if loss == "qmix":
        settings |= {"loss": {"use": "qmix", "tau": 0.05}, "data": ["d"], "max_steps": 400, "batch_size": 64}
    else:
        settings |= {"environment_steps": 3200, "num_envs": 8, "rollout_steps": 16, "batch_size": 128}
    data = {"data.0": tmp_path / "data/outputs/transitions"} if loss == "qmix" else None
    execute(tmp_path / "trained", Control, control, data, **world, **settings)
    asked = {"models": {"trained": "m"}, "episodes": 2, "num_bootstrap": 100}
    model = {"models.trained": tmp_path / "trained/outputs/model"}
    result = execute(tmp_path / "report", EvaluateControl, evaluate_control, model, **world, **asked)
    assert result.metrics["mean_return"] == 8 if loss == "qmix" else result.metrics["mean_return"] >= 7
    with pytest.raises(StepError, match="loss bc does not train teams"):
        execute(tmp_path / "cloned", Control, control, data or {}, loss="bc", environment_steps=2000, **world)
