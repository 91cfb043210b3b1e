"""A run and its steps as MLflow runs, found again by their tags."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput, LoggedModelOutput, Metric, Param, Run, RunTag

from lineage.layout import Layout
from lineage.records import Record, read_lines, read_record
from lineage.registry.client import dvc_uri
from lineage.registry.own_database import create_own_database
from lineage.tracking.content import (
    make_curve_metrics,
    make_datasets,
    make_final_metrics,
    make_model_name,
    make_name,
    make_run_params,
    make_step_params,
    to_milliseconds,
)
from schemas.base import JsonObject
from schemas.plan import Plan, Step
from schemas.references import MODEL_TYPES, POLICY_TYPES

FINISHED = ("done", "cached")
STATUS = {"done": "FINISHED", "cached": "FINISHED", "failed": "FAILED", "running": "RUNNING", "queued": "SCHEDULED"}
BATCH = {"metrics": 1000, "params": 100}
ROLE = "tags.`posttrain.role` = 'run'"
"""Condition of MLflow runs that stand for a run, and not for one of its steps."""
LOGGED = "posttrain.logged"
"""Tag of a complete child: its state and key. One without it was left by a kill, or is a step that still runs."""
WHOLE = "settings.json"
"""File of a run in MLflow with the settings that are too long for parameters."""


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
        if runs := self._runs(f"tags.`posttrain.run` = '{run}' and {ROLE}"):
            return runs[0].info.run_id
        tags = {"posttrain.run": run, "posttrain.role": "run", "posttrain.file": plan.file}
        start, _ = _read_times(layout, run)
        made = self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=run).info.run_id
        self._log_params(made, *make_run_params(plan))
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
        curves = make_curve_metrics(Path(record["folder"])) if record and state == "done" else []
        followed = None
        for existing in self._children(run, step):
            if existing.data.tags.get(LOGGED) == f"{state} {step.key}":
                return
            if followed is None and self._was_followed(existing, step, state, curves):
                followed = existing.info.run_id
            else:
                self.client.delete_run(existing.info.run_id)
        tags = _describe_child(parent, run, step, state) | (self._origin(record, state) if record else {})
        start = to_milliseconds(record["started"]) if record and state == "done" else None
        made = followed or self._create_child(step, tags, start)
        if followed:
            self.client.log_batch(made, tags=[RunTag(name, value) for name, value in tags.items()])
        if record:
            self._content(made, step, state, record, curves)
        self.client.set_tag(made, LOGGED, f"{state} {step.key}")
        end = start + int(record["seconds"] * 1000) if record and start is not None else None
        self.client.set_terminated(made, STATUS.get(state, "KILLED"), end_time=end)

    def resume_parent(self, parent: str) -> None:
        """Show a run as running that was stopped before."""
        if self.client.get_run(parent).info.status != "RUNNING":
            self.client.update_run(parent, status="RUNNING")

    def start_child(self, parent: str, run: str, step: Step, start: int) -> str:
        """Return a new MLflow run of a step that runs since `start` (milliseconds); what was left of it is deleted."""
        for existing in self._children(run, step):
            self.client.delete_run(existing.info.run_id)
        return self._create_child(step, _describe_child(parent, run, step, "running"), start)

    def end_child(self, child: str, state: str, end: int) -> None:
        """Set the status of a step that has ended (milliseconds) while its run goes on."""
        self.client.set_terminated(child, STATUS.get(state, "KILLED"), end_time=end)

    def log_points(self, child: str, points: list[Metric]) -> None:
        """Add points to the curves of a running step."""
        self._log(child, metrics=points)

    def end_stopped(self, run: str) -> None:
        """Set the status of a run that was stopped, and of its steps that still run in MLflow."""
        for stopped in self._runs(f"tags.`posttrain.run` = '{run}' and attributes.status = 'RUNNING'"):
            self.client.set_terminated(stopped.info.run_id, "KILLED")

    def list_running(self) -> set[str]:
        """Return the names of the runs that still run, by what MLflow knows."""
        return {run.data.tags["posttrain.run"] for run in self._runs(f"{ROLE} and attributes.status = 'RUNNING'")}

    def _children(self, run: str, step: Step) -> list[Run]:
        return self._runs(f"tags.`posttrain.run` = '{run}' and tags.`posttrain.step` = '{step.name}'")

    def _create_child(self, step: Step, tags: dict[str, str], start: int | None) -> str:
        made = self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=step.name).info.run_id
        self._log_params(made, *make_step_params(step))
        return made

    def _was_followed(self, child: Run, step: Step, state: str, curves: list[Metric]) -> bool:
        """Return whether a child has only points of the step's curves; one of another attempt has others.

        A failed step has no artifact, so that those points are all that is left of its curves.
        """
        if LOGGED in child.data.tags or child.data.tags.get("posttrain.key") != step.key:
            return False
        if state == "failed":
            return True
        known = {(point.key, point.step, point.timestamp) for point in curves}
        logged = (
            point for name in child.data.metrics for point in self.client.get_metric_history(child.info.run_id, name)
        )
        return state == "done" and all((point.key, point.step, point.timestamp) in known for point in logged)

    def _origin(self, record: Record, state: str) -> dict[str, str]:
        """Return tags: the run that made an artifact, and for a cached step that run's child in MLflow."""
        tags = {"posttrain.made_by": record["run"], "posttrain.commit": record.get("commit") or ""}
        makers = self._runs(f"tags.`posttrain.key` = '{record['key']}' and tags.`posttrain.state` = 'done'")
        return tags | ({"posttrain.made_by_mlflow_run": makers[0].info.run_id} if makers and state == "cached" else {})

    def _content(self, made: str, step: Step, state: str, record: Record, curves: list[Metric]) -> None:
        """Log metrics, curves (in the run that made them only), datasets and models; points that it has stay as is."""
        self._log(made, metrics=curves + make_final_metrics(record))
        read = {
            (key, output)
            for input_record in record["inputs"]
            if (key := input_record.get("key")) and (output := input_record.get("output"))
            if input_record["type"] in MODEL_TYPES
        }
        models = [LoggedModelInput(model.model_id) for given in sorted(read) for model in self._models(*given)[:1]]
        self.client.log_inputs(made, datasets=make_datasets(record), models=models)
        for name, output in record["outputs"].items():
            if output["type"] in MODEL_TYPES and state == "done":
                self._register(made, step, record, name)

    def _register(self, made: str, step: Step, record: Record, output: str) -> None:
        """Log a model and a version of its registered model, both references to the artifact."""
        digest, folder = record["outputs"][output]["digest"], Path(record["folder"], "outputs", output)
        tags = {"key": record["key"], "digest": digest, "uri": folder.as_uri(), "output": output}
        existing = self._models(record["key"], output)
        model = (
            existing[0]
            if existing
            else self.client.create_logged_model(
                self.experiment, make_model_name(step.name), source_run_id=made, tags=tags
            )
        )
        if not existing:
            self.client.finalize_logged_model(model.model_id, "READY")
        logged = self.client.get_run(made).outputs
        if model.model_id not in {one.model_id for one in (logged.model_outputs if logged else ())}:
            self.client.log_outputs(made, models=[LoggedModelOutput(model.model_id, step=0)])  # once, or it fails
        name = make_name(_name_registered(self.recipe, record, step, output))
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name)
        versions = self.client.search_model_versions(f"name = '{name}'")
        if not any(version.tags.get("key") == record["key"] for version in versions):
            self.client.create_model_version(name, dvc_uri(record["outputs"][output]["dvc"]), run_id=made, tags=tags)

    def _models(self, key: str, output: str) -> list:
        condition = f"tags.key = '{key}' and tags.output = '{output}'"
        return list(self.client.search_logged_models(self._experiments(), filter_string=condition))

    def _runs(self, condition: str) -> list:
        return list(self.client.search_runs(self._experiments(), condition, order_by=["attributes.start_time"]))

    def _experiments(self) -> list[str]:
        return [experiment.experiment_id for experiment in self.client.search_experiments()]

    def _log_params(self, run: str, params: list[Param], cut: JsonObject) -> None:
        self._log(run, params=params)
        if cut:
            self.client.log_dict(run, cut, WHOLE)

    def _log(self, run: str, metrics: Sequence[Metric] = (), params: Sequence[Param] = ()) -> None:
        """Log in batches that MLflow accepts."""
        for at in range(0, len(metrics), BATCH["metrics"]):
            self.client.log_batch(run, metrics=metrics[at : at + BATCH["metrics"]])
        for at in range(0, len(params), BATCH["params"]):
            self.client.log_batch(run, params=params[at : at + BATCH["params"]])


def _describe_child(parent: str, run: str, step: Step, state: str) -> dict[str, str]:
    return {
        "mlflow.parentRunId": parent,
        "posttrain.run": run,
        "posttrain.step": step.name,
        "posttrain.kind": step.kind,
        "posttrain.key": step.key,
        "posttrain.state": state,
    }


def _name_registered(recipe: str, record: Record, step: Step, output: str) -> str:
    """Return `<recipe>.<step>` for the model that a step is about, its policy or its first one; others add the output.

    So the versions of one registered model are of one output.
    """
    models = [name for name, made in record["outputs"].items() if made["type"] in MODEL_TYPES]
    main = next((name for name in models if record["outputs"][name]["type"] in POLICY_TYPES), models[0])
    return f"{recipe}.{step.name}" if output == main else f"{recipe}.{step.name}.{output}"


def _read_times(layout: Layout, run: str) -> tuple[int | None, int | None]:
    """Return when a run first began and last ended, in milliseconds since the epoch; None where it is not recorded."""
    times: dict[str, list[int]] = {"started": [], "ended": []}
    for event in read_lines(layout.run(run) / "events.jsonl"):
        if event["type"] == "run" and event.get("state") in times and "time" in event:
            times[event["state"]].append(int(event["time"] * 1000))
    return min(times["started"], default=None), max(times["ended"], default=None)
