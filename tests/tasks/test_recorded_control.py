"""Kind `evaluate_control` with `record`: GIFs of the first episodes, beside the numbers of the same evaluation."""

import json

import numpy as np
import pytest
from PIL import Image

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import write_table
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.stages.evaluate_control import EvaluateControl
from tasks import evaluate_control, recorded_control
from tasks.context import Context

TABLE = NetworkSettings(hidden_sizes=[])
CLIFFS = {"use": "cliffs", "width": 4, "height": 3, "pits": []}
RIGHT, UP = 3, 0


@pytest.fixture
def run(tmp_path):
    def run(name, models=None, **settings):
        written = {"kind": "evaluate_control", "models": {one: one for one in models or {}}, "episodes": 4, **settings}
        stage = EvaluateControl.model_validate(written)
        context = Context(
            {f"models.{one}": folder for one, folder in (models or {}).items()},
            tmp_path / name,
            tmp_path / name / "checkpoints",
            seed=3,
        )
        context.folder.mkdir()
        task = {"evaluate_control": evaluate_control, "recorded_control": recorded_control}[stage.task_module]
        return task.run(stage, context), context.output("report")

    return run


@pytest.fixture
def save(tmp_path):
    def save(name, table, form="make_choice_values"):
        spaces = Spaces(*table.shape)
        actor = getattr(Networks(spaces, TABLE), form)()
        write_table(actor, table)
        (tmp_path / name).mkdir()
        ControlPolicy(spaces, TABLE, form, actor).save(tmp_path / name, {})
        return tmp_path / name

    return save


def always(choice, states=12):
    return np.tile(np.eye(4)[choice], (states, 1))


def cells(file):
    """Return the agent's cell in each frame."""
    found = []
    with Image.open(file) as gif:
        for n in range(gif.n_frames):
            gif.seek(n)
            ((cell),) = np.argwhere((np.asarray(gif.convert("RGB"))[8::16, 8::16] == (214, 69, 65)).all(-1))
            found.append(tuple(cell.tolist()))
    return found


def test_every_policy_is_shown_from_the_first_starts_and_no_number_changes(run, save):
    models = {"right": save("right", always(RIGHT)), "a@seed=1,b/c": save("up", always(UP))}
    policies = {"any": "random"}
    settings = {"env": CLIFFS, "policies": policies}
    plain, before = run("plain", models, **settings)
    made, report = run("recorded", models, **settings, record={"episodes": 2})
    assert made.metrics == plain.metrics
    assert (report / "results.json").read_bytes() == (before / "results.json").read_bytes()
    rows = made.details["recordings"]
    files = ["0-any-0", "0-any-1", "1-right-0", "1-right-1", "2-a-seed-1-b-c-0", "2-a-seed-1-b-c-1"]
    assert [row["file"] for row in rows] == [f"recordings/{name}.gif" for name in files]
    assert [row["start"] for row in rows] == [0, 1] * 3
    assert cells(report / rows[2]["file"]) == [(2, 0), (2, 1), (2, 2), (2, 3)]
    assert {name: rows[2][name] for name in ("model", "steps", "frames", "return")} == {
        "model": "right",
        "steps": 3,
        "frames": 4,
        "return": 1.0,
    }
    assert cells(report / rows[4]["file"]) == [(2, 0), (1, 0), (0, 0)]  # it stays at the border until it is cut off
    assert (rows[4]["steps"], rows[4]["frames"], rows[4]["return"]) == (30, 31, 0.0)
    returns = dict.fromkeys(("any", "right", "a@seed=1,b/c"), 0.0)
    for line in made.details["table"]:
        returns[line["model"]] = line["value"]
    assert returns["right"] == 1
    assert returns["a@seed=1,b/c"] == 0


def test_a_recording_repeats_in_its_bytes_also_with_drawn_actions(run, save):
    models = {"drawn": save("drawn", np.zeros((12, 4)), "make_stochastic_actor")}
    world = {**CLIFFS, "up": 0.3, "limit": 12}
    settings = {"env": world, "other_envs": [CLIFFS], "explore": True, "record": {"episodes": 3, "max_frames": 6}}
    contents = []
    for name in ("one", "two"):
        made, report = run(name, models, **settings)
        contents.append([(report / row["file"]).read_bytes() for row in made.details["recordings"]])
        assert all(row["frames"] <= 6 for row in made.details["recordings"])
        assert all(len(content) < 2000 for content in contents[-1])
    assert contents[0] == contents[1]
    assert len(set(contents[0])) == 3  # three starts, three episodes


def test_a_world_without_pictures_is_refused_before_anything_is_played(run, save, monkeypatch):
    monkeypatch.setattr(evaluate_control, "run", lambda stage, context: pytest.fail("it was played"))
    with pytest.raises(StepError, match="record: Line has no pictures"):
        run("line", {"right": save("right", always(RIGHT))}, env="tests.control_worlds:line", record={})


def test_a_world_that_does_not_repeat_is_an_error(run, save, monkeypatch):
    drawn = iter(range(100))
    monkeypatch.setattr("learning.control.worlds.cliffs.Cliffs.is_home", property(lambda world: next(drawn) % 7 == 6))
    with pytest.raises(StepError, match=r"record: the episode of up from start 0 returned .* when it was played again"):
        run("again", {"up": save("up", always(UP))}, env=CLIFFS, record={})


def test_a_stage_without_recordings_has_the_settings_and_the_code_that_it_had():
    written = {"kind": "evaluate_control", "env": "Pendulum-v1", "models": {"a": "a"}}
    stage = EvaluateControl.model_validate(written)
    assert "record" not in json.loads(stage.model_dump_json())
    assert stage.task_module == "evaluate_control"
    recorded = EvaluateControl.model_validate({**written, "record": {}})
    assert json.loads(recorded.model_dump_json())["record"] == {"episodes": 1, "max_frames": 100, "max_side": 200}


def test_more_recorded_than_played_episodes_are_refused():
    written = {"kind": "evaluate_control", "env": "Pendulum-v1", "models": {"a": "a"}, "episodes": 2}
    with pytest.raises(ValueError, match="there are 2 `episodes` of each policy, not 3 to be shown"):
        EvaluateControl.model_validate({**written, "record": {"episodes": 3}})
