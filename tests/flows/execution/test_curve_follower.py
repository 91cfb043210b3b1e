"""The trackers of `track:` receive every point of a curve once, under TRL's names, also after failures and resumes."""

import json
import sqlite3
import struct
import sys
from importlib.util import find_spec

import pytest

from flows.execution import curve_follower
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
from lineage.tracking import curve_sinks, sink_opening
from lineage.tracking.curve_names import make_curve_name
from schemas.errors import PlanError, RecipeError
from schemas.recipe.load import load_recipe

LAB = """
def train(context, *, fails: bool = False):
    saved = context.checkpoints / "at.txt"
    resumed = saved.exists()
    for at in range(1, 5):
        context.log(at, loss=1.0 / at, reward=float(at), completion_length=3.0)
        if fails and not resumed and at == 3:
            saved.write_text("3")
            raise ValueError("no memory")
    context.log(4, eval_loss=0.5)
    (context.output("result") / "n.txt").write_text("1")
    return {"loss": 0.25}

def plain(context):
    (context.output("result") / "n.txt").write_text("1")
    return {"value": 3}
"""
RECIPE = """
name: tracked
track: [{trackers}]
stages:
  tuned: {{kind: python, function: {{use: "curve_lab:train", fails: {fails}}}, retries: {retries}}}
  other: {{kind: python, function: "curve_lab:plain"}}
"""
LOSSES = [(at, pytest.approx(1.0 / at)) for at in range(1, 5)]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Runs the recipe in a checkout: `lab("tensorboard", fails="true")`; `run=` resumes."""
    (tmp_path / "curve_lab.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(trackers, fails="false", retries=0, run=None):
        (tmp_path / "recipe.yaml").write_text(RECIPE.format(trackers=trackers, fails=fails, retries=retries))
        layout = Layout(tmp_path / "root")
        plan = plan_recipe(tmp_path / "recipe.yaml", layout)
        return run_plan(plan, layout, executor="inprocess", prefect=False, run=run)

    run.state = tmp_path / "root/.posttrain"
    return run


def read_scalars(state, run, step):
    """Tag to the (step, value) pairs of a step's event files, in order."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = {}
    for file in sorted((state / f"tensorboard/tracked/{run}/{step}").glob("events.*")):
        content, at = file.read_bytes(), 0
        while at < len(content):  # length, its checksum, the event, its checksum
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            for value in event.summary.value:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += length + 16
    return scalars


def test_event_files_hold_the_curves_of_a_step_under_the_names_of_trl(lab):
    made = lab("tensorboard")
    scalars = read_scalars(lab.state, made.run, "tuned")
    assert scalars == {
        "train/loss": LOSSES,
        "train/reward": [(at, at) for at in range(1, 5)],
        "train/completions/mean_length": [(at, 3.0) for at in range(1, 5)],
        "eval/loss": [(4, 0.5)],
        "final/loss": [(4, 0.25)],
    }
    assert read_scalars(lab.state, made.run, "other") == {}  # neither a curve nor scores of models


@pytest.mark.parametrize("retries", [0, 1])
def test_a_failed_step_that_is_resumed_or_tried_again_doubles_no_point(lab, retries):
    made = lab("tensorboard", fails="true", retries=retries)
    if not retries:
        assert made.states["tuned"].state == "failed"
        assert read_scalars(lab.state, made.run, "tuned")["train/loss"] == LOSSES[:3]
        made = lab("tensorboard", fails="true", run=made.run)
    assert made.states["tuned"].state == "done"
    assert read_scalars(lab.state, made.run, "tuned")["train/loss"] == LOSSES


def test_a_resumed_run_completes_the_record_of_a_step_that_had_ended_before_the_kill(lab):
    made = lab("tensorboard")
    (lab.state / f"runs/{made.run}/tracked.txt").unlink()  # the run was killed before the record was closed
    assert lab("tensorboard", run=made.run).states["tuned"].state == "cached"
    assert read_scalars(lab.state, made.run, "tuned")["train/loss"] == LOSSES


def test_a_cached_step_has_a_record_only_in_the_run_that_made_it(lab):
    lab("tensorboard")
    second = lab("tensorboard")
    assert second.states["tuned"].state == "cached"
    assert read_scalars(lab.state, second.run, "tuned") == {}


def test_a_tracker_that_is_not_installed_is_refused_before_anything_starts(lab, monkeypatch):
    monkeypatch.setattr(curve_sinks, "MODULES", {**curve_sinks.MODULES, "wandb": "a_library_that_is_not_here"})
    with pytest.raises(PlanError, match=r"pip install 'posttrain\[wandb\]'"):
        lab("tensorboard, wandb")
    assert not (lab.state / "runs").exists()


def test_a_tracker_that_fails_disturbs_neither_the_run_nor_the_others(lab, monkeypatch, capsys):
    def open_sink(tracker, *args):
        if tracker == "wandb":
            raise OSError("the disk is full")
        return sink_opening.open_sink(tracker, *args)

    monkeypatch.setattr(curve_sinks, "MODULES", {**curve_sinks.MODULES, "wandb": "json"})
    monkeypatch.setattr(curve_follower, "open_sink", open_sink)
    made = lab("wandb, tensorboard")
    assert made.exit_code == 0
    assert read_scalars(lab.state, made.run, "tuned")["train/loss"] == LOSSES
    assert "track: wandb did not record all curves: OSError: the disk is full" in capsys.readouterr().err


def test_an_unknown_tracker_is_named_with_its_line(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(trackers="tensorbord", fails="false", retries=0))
    with pytest.raises(RecipeError, match=r"recipe.yaml:3:\d+: track.*tensorbord"):
        load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("loss", "train/loss"),
        ("reward", "train/reward"),
        ("reward_std", "train/reward_std"),
        ("reward/answers.exact", "train/rewards/answers.exact/mean"),
        ("kl", "train/kl"),
        ("completion_length", "train/completions/mean_length"),
        ("truncated", "train/completions/clipped_ratio"),
        ("rewards/accuracies", "train/rewards/accuracies"),
        ("eval_loss", "eval/loss"),
        ("eval_rewards/accuracies", "eval/rewards/accuracies"),
    ],
)
def test_metrics_that_trl_has_bear_its_names(metric, name):
    assert make_curve_name(metric) == name


WANDB = """
import json, pathlib
class Settings(dict):
    def __init__(self, *, silent, console, save_code, x_disable_stats): super().__init__(console=console)
class Run:
    def __init__(self, settings):
        self.file = pathlib.Path(settings["dir"], "wandb", f"offline-run-1-{settings['id']}", "run.jsonl")
        self.file.parent.mkdir(parents=True)
        self.add(settings)
    def add(self, line):
        with self.file.open("a") as file: file.write(json.dumps(line, default=str) + "\\n")
    def define_metric(self, name, *, step_metric): self.add([name, step_metric])
    def log(self, values): self.add(values)
    def finish(self, *, exit_code): self.add(exit_code)
def init(*, project, group, name, id, job_type, dir, mode, reinit, config, settings):
    return Run({"dir": dir, "id": id, "project": project, "group": group, "name": name, "mode": mode, "reinit": reinit})
"""
"""The part of wandb's API that is used, which writes down what it receives."""
TRACKIO = """
import json, os, pathlib
TRACKIO_DIR = pathlib.Path(os.environ["TRACKIO_DIR"])
class SQLiteStorage:
    rows = {}
    @staticmethod
    def validate_project_name(name): assert name == "tracked"
    @classmethod
    def delete_run(cls, project, name): cls.rows.pop(name, None)
    @classmethod
    def bulk_log(cls, project, name, values, *, steps, timestamps, config):
        cls.rows.setdefault(name, []).extend(zip(steps, values, strict=True))
        TRACKIO_DIR.mkdir(parents=True, exist_ok=True)
        (TRACKIO_DIR / "rows.json").write_text(json.dumps(cls.rows))
"""
"""The part of Trackio's storage that is used."""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts modules in the place of a tracker's library, for one test: file to text."""

    def install(sink, files):
        for name, text in files.items():
            (tmp_path / "libraries" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "libraries" / name).write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path / "libraries"))
        for name in list(sys.modules):
            if name.partition(".")[0] in ("wandb", "trackio") or name == sink:
                monkeypatch.delitem(sys.modules, name)
        installed.add(sink)

    installed: set[str] = set()
    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] in ("wandb", "trackio") or name in installed]:
        del sys.modules[name]


def test_wandb_receives_an_offline_run_per_step_under_the_names_of_trl(lab, stand_in):
    stand_in("lineage.tracking.wandb_sink", {"wandb/__init__.py": WANDB})
    made = lab("wandb", fails="true")
    lab("wandb", fails="true", run=made.run)
    (file,) = (lab.state / "wandb").glob("offline-run-*/run.jsonl")
    settings, metric, *rows, code = map(json.loads, file.read_text().splitlines())
    assert {name: settings[name] for name in ("project", "group", "name", "mode", "reinit")} == {
        "project": "tracked",
        "group": made.run,
        "name": f"{made.run}/tuned",
        "mode": "offline",
        "reinit": "create_new",
    }
    assert (metric, code) == (["*", "train/global_step"], 0)
    losses = [(row["train/global_step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == LOSSES
    assert {"train/completions/mean_length", "eval/loss", "final/loss"} <= {name for row in rows for name in row}


def test_trackio_receives_each_point_once_in_the_folder_of_the_run(lab, stand_in, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    stand_in("lineage.tracking.trackio_sink", {"trackio/__init__.py": "", "trackio/sqlite_storage.py": TRACKIO})
    made = lab("trackio", fails="true")
    lab("trackio", fails="true", run=made.run)
    rows = json.loads((lab.state / "trackio/rows.json").read_text())
    assert list(rows) == [f"{made.run}/tuned"]
    losses = [(at, values["train/loss"]) for at, values in rows[f"{made.run}/tuned"] if "train/loss" in values]
    assert losses == LOSSES
    assert any("eval/loss" in values for _, values in rows[f"{made.run}/tuned"])


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is optional; an import would fix its folder")
def test_trackio_holds_one_row_per_point_after_a_resume(lab):
    made = lab("trackio", fails="true")
    made = lab("trackio", fails="true", run=made.run)
    with sqlite3.connect(lab.state / "trackio/tracked.db") as database:
        rows = database.execute("select run_name, step from metrics order by timestamp").fetchall()
    assert rows == [(f"{made.run}/tuned", at) for at in (1, 2, 3, 4, 4, 4)]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is optional")
def test_wandb_has_one_offline_run_per_step_after_a_resume(lab):
    made = lab("wandb", fails="true")
    lab("wandb", fails="true", run=made.run)
    (folder,) = (lab.state / "wandb").glob("offline-run-*")
    assert list(folder.glob("*.wandb"))
