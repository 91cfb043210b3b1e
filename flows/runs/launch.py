"""Run a plan to its end: executor, Prefect, audit log and projections around one execution."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from flows.execution.active_runs import mark_active
from flows.execution.alerts import Alerts, verify_addresses
from flows.execution.audit_entries import log_run_ended, log_run_started
from flows.execution.curve_follower import CurveFollower
from flows.execution.events import Reporter, RunEvent
from flows.execution.execute import Execution, Executor, execute_plan
from flows.execution.ledger import open_ledger
from flows.execution.live_curves import LiveCurves
from flows.execution.run_log import RunLog, make_run_name, write_plan
from flows.execution.states import EXIT_CANCELLED, StepState, compute_exit_code
from flows.planning.engine_check import verify_engines
from flows.planning.estimate import Forecast
from flows.processes.cleanup import clean_up
from flows.processes.stop_signals import enforce_stop, set_on_signals
from flows.servers.prefect_server import use_prefect_server
from flows.steps.artifacts import restore_damaged
from flows.steps.in_process import InProcess
from flows.steps.machine_limits import check_machine
from flows.steps.ray_workers import RayWorkers
from lineage.artifacts.provenance import read_commit
from lineage.artifacts.store import Store
from lineage.audit.log import anchor_of
from lineage.layout import Layout
from lineage.tracking.curve_sinks import verify_trackers
from schemas.notify import Occasion
from schemas.plan import Plan, Step

ExecutorName = Literal["ray", "inprocess"]
Project = Callable[["Outcome", Alerts], object]
"""Updates the projections of an ended run."""
Perform = Callable[[Execution, Callable[[], None]], object]
"""Performs all steps, then calls the function that it is given."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: str
    states: dict[str, StepState]

    @property
    def exit_code(self) -> int:
        """Return 0 for ok, 1 for a failed step, 2 for a failed gate, 130 for a stopped run."""
        return compute_exit_code(self.states)


def run_plan(
    plan: Plan,
    layout: Layout,
    *,
    executor: ExecutorName = "ray",
    prefect: bool = True,
    reporter: Reporter | None = None,
    run: str | None = None,
    perform: Perform | None = None,
    project: Project = lambda outcome, alerts: None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run a plan to its end; `run` resumes that run. If nothing is missing, no server and no Ray start.

    `perform` does it in an existing flow run; `project` is called at the end unless the run is stopped. Ctrl-C,
    SIGTERM or `stop` ends the steps and the run (exit code 130), which can be resumed; steps in this process that do
    not end are killed with it (`flows.processes.stop_signals`). Raise PlanError before anything starts if a step asks
    for more than there is.
    """
    verify_addresses(plan)
    verify_trackers(plan.track)
    restored = restore_damaged(plan.steps, layout)
    missing, run = _find_missing(plan, layout, executor), run or make_run_name()
    write_plan(layout, run, plan)
    clean_up(layout)
    used_prefect = prefect and perform is None and executor == "ray" and bool(missing)
    alerts = Alerts(plan, layout, run, partial(_emit_alert, plan.recipe, run) if used_prefect or perform else None)
    follows = "mlflow" in plan.track and bool(missing) and executor == "ray"
    live = LiveCurves(plan, layout, run) if follows else None
    curves = CurveFollower(plan, layout, run)
    log = RunLog(layout, run, reporter, alerts, live, curves)
    forecast = _announce_run(log, run, Forecast(plan, layout))
    stop = stop or threading.Event()
    with (
        alerts,
        live or nullcontext(),
        curves,
        mark_active(layout, run),
        set_on_signals(stop),
        _open_server(layout, used_prefect) as ready,
        _open_executor(executor if missing else None, layout) as backend,
        set_on_signals(stop),  # again: Ray sets handlers of its own
    ):
        if backend is not None:
            backend.check(missing)
        ledger = open_ledger(run, forecast) if missing else None
        execution = Execution(plan, layout, backend, log, run, stop, ledger, forecast)
        execution.restored = restored
        used_prefect = used_prefect and ready(stop)

        def end() -> None:
            if live is not None:
                live.close()
            _end_run(execution, log, lambda ended: project(ended, alerts))

        _perform_all(execution, used_prefect, perform, end)
    return Outcome(run, execution.states)


def _emit_alert(recipe: str, run: str, occasion: Occasion, text: str) -> str:
    """Send an event to Prefect's server; return why that failed."""
    from flows.prefect_runs.alert_events import emit_alert  # imports prefect, which most runs never need for this

    return emit_alert(recipe, run, occasion, text)


def _find_missing(plan: Plan, layout: Layout, executor: ExecutorName) -> list[Step]:
    """Return the steps without artifacts. Raise PlanError if one asks for more than this machine has."""
    store = Store(layout)
    missing = [s for s in plan.steps if store.find(s.kind, s.key) is None]
    verify_engines(missing)
    if executor == "ray":
        check_machine(missing)
    return missing


def _end_run(execution: Execution, log: RunLog, project: Callable[[Outcome], object]) -> None:
    outcome = Outcome(execution.run, execution.states)
    entry = log_run_ended(execution.layout, outcome.run, outcome.states, outcome.exit_code)
    log.report(
        {
            "type": "run",
            "run": outcome.run,
            "state": "ended",
            "exit_code": outcome.exit_code,
            "audit": anchor_of(entry),
        }
    )
    if outcome.exit_code != EXIT_CANCELLED:  # a stopped run ends at once; resuming it updates the projections
        project(outcome)


def _announce_run(log: RunLog, run: str, forecast: Forecast) -> Forecast:
    plan, verdicts = forecast.plan, forecast.verdicts
    log_run_started(forecast.layout, run, plan, sum(hit == "HIT" for hit, _ in verdicts.values()))
    started = RunEvent(type="run", run=run, state="started", recipe=plan.recipe, steps=len(plan.steps))
    commit, dirty = read_commit(Path(plan.file).resolve().parent)
    if commit is not None:
        started["recipe_commit"], started["recipe_dirty"] = commit, dirty
    log.report(started)
    for name, (hit, why) in verdicts.items():
        log.report({"type": "step", "step": name, "state": "queued", "reason": f"{hit}: {why}"})
    return forecast


def _perform_all(execution: Execution, prefect: bool, perform: Perform | None, ended: Callable[[], None]) -> None:
    if perform is None and prefect:
        from flows.prefect_runs.prefect_fallback import run_flow_with_fallback  # imports prefect

        perform = run_flow_with_fallback
    if perform is not None:
        perform(execution, ended)
    else:
        execute_plan(execution)
        ended()


@contextmanager
def _open_server(layout: Layout, is_needed: bool) -> Iterator[Callable[[threading.Event], bool]]:
    if not is_needed:
        yield lambda stop: False
        return
    with use_prefect_server(layout) as ready:
        yield ready


@contextmanager
def _open_executor(name: ExecutorName | None, layout: Layout) -> Iterator[Executor | None]:
    if name is None:
        yield None
    elif name == "ray":
        with closing(RayWorkers(layout)) as backend:
            yield backend
    else:
        with enforce_stop():  # a step's call of C code may keep the handlers of this process from running
            yield InProcess()
