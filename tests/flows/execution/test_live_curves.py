"""Curves of running steps in MLflow: visible while a step runs, and the same at the end as without them."""

import json
import sqlite3
from contextlib import closing

import pytest
from mlflow import MlflowClient

from flows.execution.live_curves import LiveCurves
from flows.execution.run_log import read_events
from lineage.tracking.record import project_run
from tests.lineage.conftest import Maker, make_small_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
DONE = {name: {"state": "done"} for name in ("base", "lessons", "lessons_clean", "tuned", "raw")}
CURVE = [{"step": n, "time": 100.0 + n, "loss": 1 / n} for n in (1, 2, 4)]


@pytest.fixture
def small_run(tmp_path):
    return make_small_run(Maker(tmp_path))


def event(step, state):
    return {"type": "step", "step": step, "state": state}


def attempt(run, name, points):
    """The folder that an attempt of `tuned` writes into."""
    folder = run.layout.work(run.plan().step("tuned").key) / f"tmp-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    return folder


def find(client, run, step):
    experiments = [e.experiment_id for e in client.search_experiments()]
    (one,) = client.search_runs(experiments, f"tags.`posttrain.run` = '{run}' and tags.`posttrain.step` = '{step}'")
    return one


def content(client, run):
    """What MLflow shows of the step `tuned`, without names of runs and times that differ from run to run."""
    one = find(client, run, "tuned")
    history = {name: client.get_metric_history(one.info.run_id, name) for name in one.data.metrics}
    points = {n: sorted((p.step, p.timestamp, p.value) for p in h) for n, h in history.items()}
    tags = {n: v for n, v in one.data.tags.items() if n not in ("mlflow.parentRunId", "posttrain.run")}
    models = [m.model_id for m in one.outputs.model_outputs], [m.model_id for m in one.inputs.model_inputs]
    return points, tags, one.data.params, one.info.status, one.info.end_time, models


def test_curves_are_visible_while_a_step_runs_and_final_as_without(small_run, monkeypatch):
    monkeypatch.setattr("flows.execution.live_curves.LOOK", 1000.0)  # the test looks itself
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    layout, plan = small_run.layout, small_run.plan()
    layout.run("killed").mkdir(parents=True)
    with LiveCurves(plan, layout, "killed") as killed:  # killed: its lock is free, and nothing has ended it in MLflow
        killed.report(event("tuned", "running"))
        attempt(small_run, "x", [])
        killed.look()
        killed.parent = ""  # so that leaving the block does not end it there
    client = MlflowClient(layout.mlflow_uri)
    assert find(client, "killed", "tuned").info.status == "RUNNING"

    (layout.run("run-1")).mkdir(parents=True)
    with LiveCurves(plan, layout, "run-1") as live:
        live.report(event("base", "done"))
        live.report(event("tuned", "running"))
        first = attempt(small_run, "one", CURVE[:1])
        live.look()
        assert find(client, "killed", "tuned").info.status == "KILLED"
        seen = find(client, "run-1", "tuned")
        assert (seen.info.status, seen.data.metrics) == ("RUNNING", {"train/loss": 1.0})
        with (first / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "time": 107.0, "loss": 0.7}\n{"step": 3, "ti')  # a line that is being written
        live.look()
        assert find(client, "run-1", "tuned").data.metrics == {"train/loss": 0.7}

        live.report(event("tuned", "running"))  # another attempt from the checkpoint after step 1
        (first / "metrics.jsonl").unlink()
        first.rmdir()
        second = attempt(small_run, "two", CURVE)
        live.look()
        seen = find(client, "run-1", "tuned")
        history = client.get_metric_history(seen.info.run_id, "train/loss")
        assert sorted((p.step, p.value) for p in history) == [(1, 1.0), (2, 0.5), (4, 0.25)]
        (second / "metrics.jsonl").unlink()
        second.rmdir()
        live.report(event("tuned", "done"))
        live.look()
        assert find(client, "run-1", "tuned").info.status == "FINISHED"
        live.close()
        project_run(layout, "run-1", plan, DONE)
    assert find(client, "run-1", "tuned").info.run_id == seen.info.run_id  # the page that was open stays
    with_live = content(client, "run-1")
    (only,) = client.search_runs([seen.info.experiment_id], "tags.`posttrain.role` = 'run' and status = 'FINISHED'")
    assert only.data.params["stages.tuned.learning_rate"] == "0.1"
    client.delete_run(seen.info.run_id)
    project_run(layout, "run-1", plan, DONE)
    assert content(client, "run-1") == with_live

    with LiveCurves(plan, layout, "run-2") as stopped:  # nothing records the end of a stopped run
        layout.run("run-2").mkdir(parents=True)
        stopped.report(event("tuned", "running"))
        attempt(small_run, "three", CURVE[:2])
        stopped.look()
    assert find(client, "run-2", "tuned").info.status == "KILLED"
    project_run(layout, "run-2", plan, DONE | {"tuned": {"state": "failed"}})
    failed = find(client, "run-2", "tuned")
    assert (failed.info.status, failed.data.metrics) == ("FAILED", {"train/loss": 0.5})


def test_a_run_goes_on_without_mlflow(small_run, monkeypatch):
    """The thread itself meets the failure; what it cannot write is one event of the run."""
    monkeypatch.setattr("flows.execution.live_curves.LOOK", 0.01)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    state = small_run.layout.make_state()
    with closing(sqlite3.connect(state / "mlflow.db")) as database:
        database.execute("create table experiments (broken)")
    layout, plan = small_run.layout, small_run.plan()
    layout.run("run-1").mkdir(parents=True)
    attempt(small_run, "one", CURVE)
    with LiveCurves(plan, layout, "run-1") as live:
        live.report(event("tuned", "running"))
        while not live.errors:
            live.closed.wait(0.01)
    (recorded,) = [e for e in read_events(layout, "run-1") if e["type"] == "live_curves"]
    assert recorded["error"]
