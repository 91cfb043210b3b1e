"""Artifacts of a flow run in Prefect: the plan, progress of long steps, results, links.

An artifact that cannot be written is logged; the run goes on.
"""

import contextlib
import json
import logging
import os
import re
import threading
from types import TracebackType
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import PrefectHTTPStatusError

from flows.execution.events import Event, Reporter
from flows.execution.execute import Execution
from flows.execution.progress import extract_figures
from flows.execution.run_log import read_promotion
from flows.planning.estimate import describe_costs, describe_excess
from flows.planning.gate_power import describe_gate_power
from flows.planning.recipe_plan import compare_repeated
from flows.prefect_runs.flow_context import current_flow_run
from flows.prefect_runs.run_page import list_result_rows, make_plan_page, make_result_page
from flows.servers.up import read_addresses
from lineage.layout import Layout
from lineage.tracking.record import find_run_page
from schemas.base import JsonObject
from schemas.plan import Plan

UPDATE_SECONDS = 2.0
"""Seconds between updates of progress; a shorter step has no bar."""
log = logging.getLogger("prefect.flow_runs.posttrain")


def show_plan(execution: Execution) -> None:
    """Show the plan as it is before the first step."""
    plan, layout = execution.plan, execution.layout
    verdicts, estimates = execution.forecast.verdicts, execution.forecast.estimates
    took = {name: estimate.cost.seconds for name, estimate in estimates.items() if estimate.cost}
    page = make_plan_page(plan, execution.run, verdicts, took)
    page = "\n\n".join(
        [page, *describe_costs(plan, estimates), *describe_excess(plan, estimates), *describe_gate_power(plan, layout)]
    )
    _create_artifact(plan, "plan", "markdown", page, f"What run {execution.run} will do, and why.")


def show_ended(execution: Execution) -> None:
    """Show results as a page and as a table, with links to MLflow and files."""
    plan, states = execution.plan, {step.name: execution.states[step.name] for step in execution.plan.steps}
    links = _find_links(execution.layout, execution.run)
    repeated = compare_repeated(plan.steps, execution.layout)
    page = make_result_page(execution.run, states, repeated, links, read_promotion(execution.layout, execution.run))
    _create_artifact(plan, "results", "markdown", page, f"How run {execution.run} ended.")
    if rows := list_result_rows(states):
        _create_artifact(plan, "table", "table", json.dumps(rows), "Held-out problems: every number with its interval.")
    for name in ("mlflow", "report"):
        if (link := links.get(name, "")).startswith("["):
            _create_artifact(plan, name, "markdown", link, f"Run {execution.run} in MLflow: {name}.")


def show_page(plan: Plan, name: str, page: str, description: str) -> str:
    """Show a page of markdown under its own name; return its path in Prefect's UI, empty if that failed."""
    made = _create_artifact(plan, name, "markdown", page, description)
    return f"/artifacts/artifact/{made}" if made else ""


def _find_links(layout: Layout, run: str) -> dict[str, str]:
    """Return links to a run's pages in MLflow where they are served, and to its files."""
    links = {"files": f"`{layout.run(run)}` (report.html, plan.json, events.jsonl)"}
    served = read_addresses(layout).get("mlflow") or os.environ.get("MLFLOW_TRACKING_URI", "")
    try:
        page = find_run_page(layout, run) if served.startswith("http") else None
    except Exception as error:  # MLflow's record is a projection, this is a link to it
        log.warning("MLflow was not asked for its page of the run: %s", error)
        page = None
    if page:
        links["mlflow"] = f"[curves, datasets and models in MLflow]({served}{page})"
        links["report"] = f"[the report]({served}{page}/artifacts/report.html)"
    return links


def _create_artifact(plan: Plan, name: str, kind: str, data: str, description: str) -> UUID | None:
    flow_run = current_flow_run().id
    artifact = ArtifactCreate(
        key=make_artifact_key(plan.recipe, name), type=kind, data=data, description=description, flow_run_id=flow_run
    )
    try:
        with get_client(sync_client=True) as client:
            return client.create_artifact(artifact).id
    except Exception as error:
        log.warning("the artifact %s was not written: %s", artifact.key, error)
        return None


def make_artifact_key(recipe: str, name: str) -> str:
    """Return a key as Prefect requires it: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{recipe}-{name}".lower()).strip("-")


class ProgressBars:
    """A reporter that passes events on and shows progress of running steps as artifacts every few seconds.

    A separate thread talks to Prefect: a slow or dead server does not hold up a step.
    """

    def __init__(self, inner: Reporter, plan: Plan, flow_run: UUID):
        self.inner, self.plan, self.flow_run = inner, plan, flow_run
        self.lock, self.over = threading.Lock(), threading.Event()
        self.tasks: dict[str, UUID] = {}
        self.unnamed: dict[str, UUID] = {}
        self.progress: dict[str, JsonObject] = {}
        self.shown: dict[str, tuple[UUID, float, str]] = {}
        self.thread = threading.Thread(target=self._update_bars, name="progress", daemon=True)

    def __enter__(self) -> "ProgressBars":
        """Start the thread."""
        self.thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Show the final progress of every step, and end."""
        self.over.set()
        self.thread.join(10)

    def set_task_run(self, step: str, task_run: UUID) -> None:
        """Set the task run that shows a step."""
        with self.lock:
            self.tasks[step] = task_run
            self.unnamed.pop(step, None)

    def expect_task_run(self, step: str, task_run: UUID) -> None:
        """Set the task run of a step that may have to wait: Prefect names it only when it begins."""
        with self.lock:
            self.unnamed[step] = task_run

    def report(self, event: Event) -> None:
        """Pass an event on, and keep the progress of a step from it."""
        self.inner.report(event)
        with self.lock:
            if event["type"] == "progress":
                progress = self.progress.get(event["step"], {})
                self.progress[event["step"]] = progress | {k: v for k, v in event.items() if v is not None}
            elif event["type"] == "step" and event["state"] == "done" and event["step"] in self.progress:
                self.progress[event["step"]]["at"] = self.progress[event["step"]].get("total", 0)

    def _update_bars(self) -> None:
        ending = False
        while not ending:
            ending = self.over.wait(UPDATE_SECONDS)
            with self.lock:
                now = {step: format_progress(event) for step, event in self.progress.items() if event.get("total")}
            try:
                self._name_task_runs()
                for step, (percent, text) in now.items():
                    if self.shown.get(step, (None, None, None))[1:] != (percent, text):
                        self._write_bar(step, percent, text, ending)
            except Exception as error:
                log.warning("progress was not shown: %s", error)

    def _name_task_runs(self) -> None:
        with self.lock:
            waiting = dict(self.unnamed)
        for step, task_run in waiting.items():
            # Prefect learns of task runs with a delay: not found means try again.
            with get_client(sync_client=True) as client, contextlib.suppress(PrefectHTTPStatusError):
                client.set_task_run_name(task_run, step)
                with self.lock:
                    self.unnamed.pop(step, None)

    def _write_bar(self, step: str, percent: float, text: str, ending: bool) -> None:
        bar = self.shown.get(step)
        if bar is None and ending:
            return
        with get_client(sync_client=True) as client:
            if bar is None:
                made = client.create_artifact(
                    ArtifactCreate(
                        key=make_artifact_key(self.plan.recipe, f"progress-{step}"),
                        type="progress",
                        data=percent,
                        description=f"{step}: {text}",
                        flow_run_id=self.flow_run,
                        task_run_id=self.tasks.get(step),
                    )
                )
                bar = (made.id, percent, text)
            else:
                client.update_artifact(bar[0], ArtifactUpdate(data=percent, description=f"{step}: {text}"))
        self.shown[step] = (bar[0], percent, text)


def format_progress(event: JsonObject) -> tuple[float, str]:
    """Return percent done, and the figures of a progress event as text."""
    at, total = event.get("at") or 0, event["total"]
    figures = [f"{k} {v:.4g}" for k, v in extract_figures(event).items()]
    return round(min(100.0, 100.0 * at / total), 1), ", ".join([f"{at} of {total}", *figures[:4]])
