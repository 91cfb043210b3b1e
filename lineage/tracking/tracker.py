"""A run and its steps as MLflow runs, found again by their tags."""

import os
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput, LoggedModelOutput, Param

from lineage.layout import Layout
from lineage.records import Record, read_lines, read_record
from lineage.registry.client import dvc_uri
from lineage.registry.own_database import create_own_database
from lineage.tracking.content import (
    flatten,
    make_curve_metrics,
    make_datasets,
    make_final_metrics,
    make_model_name,
    make_name,
    to_milliseconds,
)
from schemas.plan import Plan, Step
from schemas.references import MODEL_TYPES

FINISHED = ("done", "cached")
STATUS = {"done": "FINISHED", "cached": "FINISHED", "failed": "FAILED", "running": "RUNNING", "queued": "SCHEDULED"}
BATCH = {"metrics": 1000, "params": 100}


class Tracker:
    """MLflow's client with the experiment of one recipe."""

    def __init__(self, layout: Layout, recipe: str):
        uri = os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri
        if uri == layout.mlflow_uri:
            create_own_database(layout)
        self.client = MlflowClient(uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI") or uri)
        self.recipe = recipe
        experiment = self.client.get_experiment_by_name(recipe)
        location = (
            (layout.state / "mlflow-artifacts" / make_name(recipe)).as_uri() if uri == layout.mlflow_uri else None
        )
        self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(recipe, location)

    def parent(self, run: str, plan: Plan, layout: Layout) -> str:
        """Return the MLflow run of a run, created if missing; its start time is that of the run."""
        if runs := self._runs(f"tags.`posttrain.run` = '{run}' and tags.`posttrain.role` = 'run'"):
            return runs[0].info.run_id
        tags = {"posttrain.run": run, "posttrain.role": "run", "posttrain.file": plan.file}
        start, _ = _read_times(layout, run)
        made = self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=run).info.run_id
        self._log(
            made, params={"recipe": plan.recipe, "profile": plan.profile or "", "seed": plan.resolved.get("seed", "")}
        )
        return made

    def end_parent(self, parent: str, run: str, plan: Plan, states: Mapping[str, str], layout: Layout) -> None:
        """Write the steps' final numbers to the parent as step/metric and set its status and the time of its end."""
        step_states = [states.get(step.name, "queued") for step in plan.steps]
        metrics = []
        for step in plan.steps:
            record = read_record(layout.artifact(step.kind, step.key))
            metrics += make_final_metrics(record, step.name) if record and states.get(step.name) in FINISHED else []
        self._log(parent, metrics=metrics)
        _, end = _read_times(layout, run)
        if any(state in ("failed", "blocked") for state in step_states):
            self.client.set_terminated(parent, "FAILED", end_time=end)
        elif "cancelled" in step_states:
            self.client.set_terminated(parent, "KILLED", end_time=end)
        elif not any(state in ("queued", "running") for state in step_states):
            self.client.set_terminated(parent, "FINISHED", end_time=end)

    def child(self, parent: str, run: str, step: Step, state: str, record: Record | None) -> None:
        """Create the MLflow run of a step, unless a complete one exists."""
        condition = f"tags.`posttrain.run` = '{run}' and tags.`posttrain.step` = '{step.name}'"
        for existing in self._runs(condition):
            if existing.data.tags.get("posttrain.logged") == f"{state} {step.key}":
                return
            self.client.delete_run(existing.info.run_id)
        tags = {
            "mlflow.parentRunId": parent,
            "posttrain.run": run,
            "posttrain.step": step.name,
            "posttrain.kind": step.kind,
            "posttrain.key": step.key,
            "posttrain.state": state,
        }
        if record:
            tags |= self._origin(record, state)
        start = to_milliseconds(record["started"]) if record and state == "done" else None
        made = self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=step.name).info.run_id
        self._log(made, params=flatten(step.settings | {"seed": step.seed}))
        if record:
            self._content(made, step, state, record)
        self.client.set_tag(made, "posttrain.logged", f"{state} {step.key}")
        end = start + int(record["seconds"] * 1000) if record and start is not None else None
        self.client.set_terminated(made, STATUS.get(state, "KILLED"), end_time=end)

    def _origin(self, record: Record, state: str) -> dict[str, str]:
        """Return tags: the run that made an artifact, and for a cached step that run's child in MLflow."""
        tags = {"posttrain.made_by": record["run"], "posttrain.commit": record.get("commit") or ""}
        makers = self._runs(f"tags.`posttrain.key` = '{record['key']}' and tags.`posttrain.state` = 'done'")
        return tags | ({"posttrain.made_by_mlflow_run": makers[0].info.run_id} if makers and state == "cached" else {})

    def _content(self, made: str, step: Step, state: str, record: Record) -> None:
        """Log metrics, curves (in the run that made them only), datasets and models."""
        curves = make_curve_metrics(Path(record["folder"])) if state == "done" else []
        self._log(made, metrics=curves + make_final_metrics(record))
        read = [
            key
            for input_record in record["inputs"]
            if (key := input_record.get("key")) and input_record["type"] in MODEL_TYPES
        ]
        models = [LoggedModelInput(model.model_id) for key in read for model in self._models(key)[:1]]
        self.client.log_inputs(made, datasets=make_datasets(record), models=models)
        for name, output in record["outputs"].items():
            if output["type"] in MODEL_TYPES and state == "done":
                self._register(made, step, record, name)

    def _register(self, made: str, step: Step, record: Record, output: str) -> None:
        """Log a model and a version of the registered model <recipe>.<step>, both references to the artifact."""
        digest, folder = record["outputs"][output]["digest"], Path(record["folder"], "outputs", output)
        tags = {"key": record["key"], "digest": digest, "uri": folder.as_uri(), "output": output}
        existing = self._models(record["key"])
        model = (
            existing[0]
            if existing
            else self.client.create_logged_model(
                self.experiment, make_model_name(step.name), source_run_id=made, tags=tags
            )
        )
        if not existing:
            self.client.finalize_logged_model(model.model_id, "READY")
        self.client.log_outputs(made, models=[LoggedModelOutput(model.model_id, step=0)])
        name = make_name(f"{self.recipe}.{step.name}")
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name)
        versions = self.client.search_model_versions(f"name = '{name}'")
        if not any(version.tags.get("key") == record["key"] for version in versions):
            self.client.create_model_version(name, dvc_uri(record["outputs"][output]["dvc"]), run_id=made, tags=tags)

    def _models(self, key: str) -> list:
        return list(self.client.search_logged_models(self._experiments(), filter_string=f"tags.key = '{key}'"))

    def _runs(self, condition: str) -> list:
        return list(self.client.search_runs(self._experiments(), condition, order_by=["attributes.start_time"]))

    def _experiments(self) -> list[str]:
        return [experiment.experiment_id for experiment in self.client.search_experiments()]

    def _log(self, run: str, metrics: list | None = None, params: Mapping[str, object] | None = None) -> None:
        entries = {
            "metrics": metrics or [],
            "params": [Param(make_name(name)[:250], str(value)[:500]) for name, value in (params or {}).items()],
        }
        for kind, values in entries.items():
            for at in range(0, len(values), BATCH[kind]):
                self.client.log_batch(run, **{kind: values[at : at + BATCH[kind]]})


def _read_times(layout: Layout, run: str) -> tuple[int | None, int | None]:
    """Return when a run first began and last ended, in milliseconds since the epoch; None where it is not recorded."""
    times: dict[str, list[int]] = {"started": [], "ended": []}
    for event in read_lines(layout.run(run) / "events.jsonl"):
        if event["type"] == "run" and event.get("state") in times and "time" in event:
            times[event["state"]].append(int(event["time"] * 1000))
    return min(times["started"], default=None), max(times["ended"], default=None)
