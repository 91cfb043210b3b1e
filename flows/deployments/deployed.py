"""The flow that a Prefect worker executes for every deployment: plan the recipe, run it, resume it on a retry."""

import io
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import FailedRun, TerminationSignal
from prefect.states import Completed, Failed
from rich.console import Console

from flows.deployments.catch_up import queue_waiting_runs, settle_due_times
from flows.deployments.deployed_lock import RunOptions, apply_lock
from flows.deployments.flow_runs import FlowRunRecord, find_run_of, write_flow_run
from flows.execution.alerts import Alerts
from flows.execution.audit_entries import read_verified_plan
from flows.execution.run_log import make_run_name
from flows.execution.states import EXIT_CANCELLED
from flows.planning.recipe_plan import plan_recipe
from flows.prefect_runs.flow_context import current_flow_run
from flows.prefect_runs.pipeline import make_flow_state, make_task_runner, perform_in_flow
from flows.prefect_runs.suspension import watch_suspension
from flows.processes.capture import survive_closed_output
from flows.runs.launch import Outcome, run_plan
from flows.runs.start import update_projections
from lineage.audit.log import append
from lineage.layout import Layout
from schemas.errors import PosttrainError
from schemas.plan import Plan
from schemas.recipe.load import load_recipe


@flow(name="recipe", task_runner=make_task_runner(), persist_result=False)
def recipe_run(
    recipe: str,
    profile: str | None = None,
    seed: int | None = None,
    from_stages: list[str] | None = None,
    to_stages: list[str] | None = None,
    overrides: list[str] | None = None,
    fresh: bool = False,
    locked: str | None = None,
) -> State[Any]:
    """Run a recipe of this checkout; cached steps are not run again.

    Args:
        recipe: File of the recipe, relative to the checkout.
        profile: Named set of overrides in the recipe.
        seed: Seed of every stage without its own.
        from_stages: Start at these stages; earlier steps must be cached.
        to_stages: Run only these stages and their ancestors.
        overrides: Keys to set in the recipe, each as stages.x.y=value.
        fresh: Run cached steps again; the earlier artifacts stay and are compared.
        locked: Digest of the recipe's lock, for a deployment that runs only the version that the lock pins.
    """
    survive_closed_output()  # the worker, which may be killed
    layout = Layout.find()
    os.chdir(layout.root)
    logging.getLogger("prefect.flow_runs").addFilter(_drop_engine_traceback)
    logging.getLogger("prefect.task_runs").addFilter(_drop_never_started)
    options = RunOptions(
        profile=profile or None,
        to=to_stages or [],
        start=from_stages or [],
        fresh=fresh,
        overrides=[*(overrides or []), *([] if seed is None else [f"seed={seed}"])],
        locked=False,
    )
    return run_interruptibly(lambda stop: _run_recipe(recipe, layout, options, locked, stop))


def _drop_engine_traceback(record: logging.LogRecord) -> bool:
    """Drop the traceback that Prefect logs for every flow that returns Failed: the state has the reason."""
    return not (record.exc_info and isinstance(record.exc_info[1], FailedRun))


def _drop_never_started(record: logging.LogRecord) -> bool:
    """Drop Prefect's error about tasks that a suspension kept from starting: it advises to wait for them."""
    return not record.getMessage().startswith("Finished in state Pending()")


def run_interruptibly(work: Callable[[threading.Event], State[Any]]) -> State[Any]:
    """Work in another thread, so that this one can receive Prefect's signal to end; then set the event.

    Prefect reports a cancellation only while its own handler is installed: ours, and Ray's, would replace it.
    """
    stop, started, done = threading.Event(), threading.Event(), threading.Event()

    def body() -> State[Any]:
        started.set()
        try:
            return work(stop)
        finally:
            done.set()

    try:
        return ThreadPoolExecutor(1, thread_name_prefix="run").submit(copy_context().run, body).result()
    except TerminationSignal:
        stop.set()
        _wait_for_event(started, 1.0)  # the signal may have come before the thread
        while started.is_set() and not _wait_for_event(done, 1.0):
            continue
        raise


def _wait_for_event(event: threading.Event, seconds: float) -> bool:
    """Wait for an event, at most that long; a second signal in between changes nothing."""
    try:
        return event.wait(seconds)
    except TerminationSignal:
        return event.is_set()


def _run_recipe(
    recipe: str, layout: Layout, options: RunOptions, locked: str | None, stop: threading.Event
) -> State[Any]:
    try:
        schedule = load_recipe(recipe).head.schedule
        if reason := settle_due_times(schedule):
            return Completed(name="Skipped", message=reason)
        run, plan = _find_or_plan_run(recipe, layout, apply_lock(layout, recipe, locked, options))
        with watch_suspension(current_flow_run(), stop) as suspension:
            outcome = _run_plan(run, plan, layout, stop)
        if suspension.state is not None:
            suspension.end_process()
        queue_waiting_runs(schedule)
    except PosttrainError as error:
        get_run_logger().error(str(error))
        return Failed(message=str(error).splitlines()[0])
    if outcome.exit_code == EXIT_CANCELLED and not stop.is_set():  # cancelled while it waited for a person
        raise TerminationSignal(signal=signal.SIGTERM)
    return make_flow_state(outcome.states)


def _find_or_plan_run(recipe: str, layout: Layout, options: RunOptions) -> tuple[str, Plan]:
    """Return the run of this flow run with its plan: the one that was begun before a retry, else a new one."""
    shown, logger = current_flow_run(), get_run_logger()
    if run := find_run_of(layout, str(shown.id), shown.name):
        plan = read_verified_plan(layout, run)
        logger.info("continuing run %s of %s as planned", run, plan.file)
        append(layout, "flow run retried", run=run, flow_run=str(shown.id), attempt=shown.run_count)
        return run, plan
    plan = plan_recipe(recipe, layout, warn=logger.warning, **options)
    run = make_run_name()
    record = FlowRunRecord(flow_run=str(shown.id), deployment=str(shown.deployment_id), parameters=shown.parameters)
    write_flow_run(layout, run, record)
    with get_client(sync_client=True) as client:
        client.update_flow_run(shown.id, name=run)
    append(layout, "flow run started", run=run, flow_run=str(shown.id), recipe=recipe, parameters=shown.parameters)
    return run, plan


def _run_plan(run: str, plan: Plan, layout: Layout, stop: threading.Event) -> Outcome:
    output, logger = io.StringIO(), get_run_logger()
    console = Console(file=output, width=200, emoji=False)

    def update(outcome: Outcome, alerts: Alerts) -> Path:
        report = update_projections(outcome, plan, layout, console, alerts)
        for line in filter(None, output.getvalue().splitlines()):
            logger.warning(line)
        return report

    return run_plan(plan, layout, run=run, perform=perform_in_flow, project=update, stop=stop)
