"""Records runs in MLflow: a parent run per run, a child per step, datasets and models by reference.

MLflow runs are found by their tags (`posttrain.run`, `posttrain.step`, `posttrain.key`), so a projection can be
repeated: complete runs stay, and those that an interrupted projection left incomplete are created again. MLflow takes
seconds to import and to open its store, so call this from a separate thread or process.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage.layout import Layout
from lineage.records import read_lines, read_record
from lineage.registry.client import SETTINGS
from schemas.plan import Plan

if TYPE_CHECKING:
    from lineage.tracking.tracker import Tracker

States = Mapping[str, Mapping[str, Any]]
"""Step to its last event, of which `state` is read."""
MARK = "mlflow.txt"
"""In a run's folder, once MLflow knows the run: the id of its parent run there."""


def project_run(layout: Layout, run: str, plan: Plan, states: States) -> str | None:
    """Record a run in MLflow; return the id of its parent run there.

    A run whose steps were all cached must be quick: None is returned, and it is recorded together with the next run
    that executed a step.
    """
    if all(states.get(step.name, {}).get("state") == "cached" for step in plan.steps):
        return None
    with _lock_store(layout):
        for earlier, its_plan, its_states in _find_unrecorded(layout, run):
            _record_run(layout, earlier, its_plan, its_states)
        return _record_run(layout, run, plan, states)


@contextmanager
def _lock_store(layout: Layout) -> Iterator[None]:
    """Lock MLflow's store: processes that create its tables at once would leave them half made."""
    layout.make_state()
    with (layout.state / "mlflow.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _find_unrecorded(layout: Layout, but: str) -> Iterator[tuple[str, Plan, States]]:
    """Yield ended runs that are not in MLflow yet, oldest first."""
    for folder in sorted((layout.state / "runs").glob("*")):
        events = read_lines(folder / "events.jsonl")
        ended = any(e["type"] == "run" and e.get("state") == "ended" for e in events)
        if folder.name != but and ended and not (folder / MARK).exists() and (folder / "plan.json").is_file():
            plan = Plan.model_validate_json((folder / "plan.json").read_text())
            if "mlflow" in plan.track:
                yield folder.name, plan, {e["step"]: e for e in events if e["type"] == "step"}


def _record_run(layout: Layout, run: str, plan: Plan, states: States) -> str:
    tracker = open_tracker(layout, plan.recipe)
    how = {name: event["state"] for name, event in states.items()}
    parent = tracker.parent(run, plan, layout)
    for step in plan.steps:
        state = how.get(step.name, "queued")
        record = read_record(layout.artifact(step.kind, step.key)) if state in ("done", "cached") else None
        tracker.child(parent, run, step, state, record)
    tracker.end_parent(parent, run, plan, how, layout)
    layout.run(run).mkdir(parents=True, exist_ok=True)
    (layout.run(run) / MARK).write_text(parent + "\n")
    return parent


def open_tracker(layout: Layout, recipe: str) -> "Tracker":
    """Return the tracker of a recipe's experiment, after seconds of import."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")  # read while mlflow is imported
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from lineage.tracking.tracker import Tracker  # imports mlflow

    for name in ("mlflow", "alembic"):  # after the import, which sets them
        logging.getLogger(name).setLevel(logging.WARNING)
    return Tracker(layout, recipe)


def find_run_page(layout: Layout, run: str) -> str | None:
    """Return the path of a run's page on MLflow's server, or None if MLflow does not know the run."""
    if (parent := _read_parent(layout, run)) is None:
        return None
    return f"/#/experiments/{_open_client(layout).get_run(parent).info.experiment_id}/runs/{parent}"


def add_report(layout: Layout, run: str, report: Path) -> None:
    """Add a run's report to its artifacts in MLflow, if MLflow knows the run."""
    if (parent := _read_parent(layout, run)) is not None:
        _open_client(layout).log_artifact(parent, str(report))


def _read_parent(layout: Layout, run: str) -> str | None:
    mark = layout.run(run) / MARK
    return mark.read_text().strip() if mark.is_file() else None


def _open_client(layout: Layout):
    from mlflow import MlflowClient

    return MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri)
