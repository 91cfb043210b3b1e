import json
import sqlite3

import pytest
from mlflow import MlflowClient

from lineage.tracking.content import make_final_metrics, make_model_name, make_run_params, make_step_params
from lineage.tracking.record import project_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
STATES = {name: {"state": "done"} for name in ("base", "lessons", "lessons_clean", "tuned", "raw")}


@pytest.fixture
def tracked(small_run, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    project_run(small_run.layout, "run-1", small_run.plan(), STATES)
    return small_run, MlflowClient(small_run.layout.mlflow_uri)


def counts(layout):
    """Rows of every table of MLflow's store."""
    with sqlite3.connect(layout.state / "mlflow.db") as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {table: database.execute(f'select count(*) from "{table}"').fetchone()[0] for table in tables}


def leave_run(made, run, states):
    """What a run leaves in its folder."""
    folder = made.layout.run(run)
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(made.plan().model_dump_json())
    events = [{"type": "step", "step": name, **state} for name, state in states.items()]
    began = {"type": "run", "state": "started", "time": 1000.0}
    lines = [json.dumps(event) + "\n" for event in [began, *events, {"type": "run", "state": "ended", "time": 1090.5}]]
    (folder / "events.jsonl").write_text("".join(lines))


def children(client, run="run-1"):
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`posttrain.run` = '{run}'")
    return {r.data.tags.get("posttrain.step"): r for r in runs}


def test_a_run_in_mlflow_and_again_without_duplicates(tracked):
    """One test for all that needs a fresh store: making one takes seconds."""
    made, client = tracked
    runs = children(client)
    assert set(runs) == {*STATES, None}
    tuned = runs["tuned"]
    assert tuned.data.tags["mlflow.parentRunId"] == runs[None].info.run_id
    assert tuned.data.params["learning_rate"] == "0.1"
    assert tuned.data.metrics["loss"] == 0.25
    assert runs[None].data.metrics["tuned/loss"] == 0.25
    curve = client.get_metric_history(tuned.info.run_id, "train/loss")
    assert [(p.step, p.value, p.timestamp) for p in curve] == [(1, 1.0, 101000), (2, 0.5, 102000), (4, 0.25, 104000)]
    digest = made.made["lessons_clean"].outputs["data"].digest
    assert [(d.dataset.name, d.dataset.digest) for d in tuned.inputs.dataset_inputs] == [
        ("lessons_clean.data", digest[:36])
    ]
    read = client.get_run(tuned.info.run_id).inputs.model_inputs
    assert len(read) == len(tuned.outputs.model_outputs) == 1
    assert read[0].model_id == runs["base"].outputs.model_outputs[0].model_id
    version = client.get_model_version("small.tuned", "1")
    assert (version.version, version.tags["key"]) == (1, made.made["tuned"].key)
    assert not list((made.layout.state / "mlflow-artifacts").rglob("*.safetensors"))

    before = counts(made.layout)
    project_run(made.layout, "run-1", made.plan(), STATES)
    assert counts(made.layout) == before

    cached = {name: {"state": "cached"} for name in STATES}
    leave_run(made, "run-2", cached)
    assert project_run(made.layout, "run-2", made.plan(), cached) is None
    project_run(made.layout, "run-1", made.plan(), STATES)
    second = children(client, "run-2")[None].info
    assert (second.start_time, second.end_time) == (1_000_000, 1_090_500)  # of the run, not of its projection
    again = children(client, "run-2")["tuned"]
    assert again.data.tags["posttrain.made_by"] == "run-1"
    assert again.data.tags["posttrain.made_by_mlflow_run"] == tuned.info.run_id
    assert client.get_metric_history(again.info.run_id, "train/loss") == []
    assert len(client.search_model_versions("name = 'small.tuned'")) == 1

    client.delete_tag(tuned.info.run_id, "posttrain.logged")
    project_run(made.layout, "run-1", made.plan(), STATES)
    assert set(children(client)) == {*STATES, None}
    assert len(client.get_metric_history(children(client)["tuned"].info.run_id, "train/loss")) == 3
    assert len(client.search_model_versions("name = 'small.tuned'")) == 1

    project_run(made.layout, "run-3", made.plan(), STATES | {"tuned": {"state": "failed"}, "raw": {"state": "blocked"}})
    failed = children(client, "run-3")
    assert [failed[name].info.status for name in (None, "tuned", "raw", "base")] == [
        "FAILED",
        "FAILED",
        "KILLED",
        "FINISHED",
    ]
    assert failed["tuned"].data.metrics == {}


def test_two_models_of_one_step_and_an_interrupted_projection(small_run, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    outputs = {name: {"model.safetensors": name.encode()} for name in ("judge", "policy")}
    types = {"judge": "process_reward_model", "policy": "policy"}
    read = [("model", "base", "policy"), ("reference", "base", "policy")]
    trained = small_run.make("trained", "rl", outputs, types, read)
    small_run.make(
        "again",
        "rl",
        {"policy": {"model.safetensors": b"w"}},
        {"policy": "policy"},
        [
            ("model", "trained", "policy"),
            ("judge", "trained", "judge"),
        ],
    )
    client, states = MlflowClient(small_run.layout.mlflow_uri), {name: {"state": "done"} for name in small_run.made}
    project_run(small_run.layout, "run-1", small_run.plan(), states)
    runs = children(client)
    assert len(runs["trained"].outputs.model_outputs) == 2
    inputs = {name: client.get_run(runs[name].info.run_id).inputs.model_inputs for name in ("trained", "again")}
    assert [len(inputs[name]) for name in ("trained", "again")] == [1, 2]  # base is read at two ports
    made = {model.model_id for model in runs["trained"].outputs.model_outputs}
    assert {model.model_id for model in inputs["again"]} == made
    for name, output in (("small.trained", "policy"), ("small.trained.judge", "judge")):
        (version,) = client.search_model_versions(f"name = '{name}'")
        assert version.tags["digest"] == trained.outputs[output].digest

    before = counts(small_run.layout)
    client.delete_tag(runs["trained"].info.run_id, "posttrain.logged")  # as a kill between both writes leaves it
    project_run(small_run.layout, "run-1", small_run.plan(), states)
    assert counts(small_run.layout) == before


def test_settings_are_exact_parameters_and_too_long_ones_differ_too(small_run):
    step = small_run.plan().step("tuned")

    def params(**settings):
        made, cut = make_step_params(step.model_copy(update={"settings": settings}))
        assert all(len(p.key) <= 250 and len(p.value) <= 6000 for p in made)
        return {p.key: p.value for p in made}, cut

    template = "x" * 5999 + "y"
    assert params(template=template, empty=[], tools={"a": None})[0] == {
        "template": template,
        "empty": "[]",
        "tools.a": "None",
        "seed": "7",
    }
    (one, cut), (other, _) = params(template=template + "1"), params(template=template + "2")
    assert one["template"] != other["template"]
    assert cut == {"template": template + "1"}
    names, _ = params(**{"a:b": 1, "a,b": 2, "c" * 300: 3})
    assert sorted(names.values()) == ["1", "2", "3", "7"]


def test_two_runs_show_every_setting_that_differs(small_run):
    plan = small_run.plan()
    first, cut = make_run_params(plan)
    resolved = json.loads(json.dumps(plan.resolved))
    resolved["stages"]["tuned"]["learning_rate"] = 0.2
    steps = tuple(s.model_copy(update={"key": "f" * 64}) if s.name == "tuned" else s for s in plan.steps)
    second, _ = make_run_params(plan.model_copy(update={"resolved": resolved, "steps": steps, "profile": "tiny"}))
    values = [{p.key: p.value for p in params} for params in (first, second)]
    differ = {name for name in values[0].keys() | values[1].keys() if values[0].get(name) != values[1].get(name)}
    assert differ == {"stages.tuned.learning_rate", "keys.tuned", "profile"}
    assert cut == {}


def test_the_numbers_of_a_variant_have_names_that_mlflow_takes():
    record = {
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1.5,
        "metrics": {"reward/answers.exact": 0.5, "x": "text"},
    }
    (metric,) = make_final_metrics(record, "rl@algorithm=grpo,seed=1")
    assert (metric.key, metric.value) == ("rl_algorithm_grpo_seed_1/reward_answers.exact", 0.5)


def test_the_model_of_a_variant_has_a_name_that_mlflow_takes(tmp_path):
    name = make_model_name("rl@clip=high,epsilon=0.2")
    assert name == "rl_clip_high_epsilon_0_2"
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("variants")
    assert client.create_logged_model(experiment, name).name == name
