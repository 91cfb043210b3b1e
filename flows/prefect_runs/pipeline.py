"""A run as a Prefect flow: one task run per step, named after its stage, and artifacts with the plan and the results.

Prefect shows and orders; whether, where and how often a step runs is decided by the execution. The same body serves a
run from the command line, which opens its own flow run, and one that a deployment started.
"""

import logging
from collections.abc import Callable
from typing import Any, cast

from prefect import allow_failure, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.futures import PrefectConcurrentFuture
from prefect.logging.handlers import APILogHandler
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.execution.execute import Execution
from flows.execution.states import EXIT_CANCELLED, StepState, compute_exit_code, describe_states
from flows.prefect_runs.approval_form import open_queue
from flows.prefect_runs.artifacts import ProgressBars, show_ended, show_plan
from flows.prefect_runs.flow_context import current_flow_run, current_task_run
from flows.processes.stop_signals import set_on_signals
from schemas.plan import Step

STOPPED = ("Finished in state Cancelled(", "Finished in state NotReady(")
"""Beginning of Prefect's messages about steps that were stopped, and those that could not begin because of them."""
THREADS = 1000
"""Most steps of a flow that run or wait at a time; a thread starts only when it is needed."""


def make_task_runner() -> TaskRunner[Any]:
    """Return a runner with a thread per step; the stubs call its futures another class than flows take."""
    return cast(TaskRunner[Any], ThreadPoolTaskRunner(THREADS))


def run_flow(execution: Execution, ended: Callable[[], None]) -> dict[str, StepState]:
    """Perform an execution in a flow run of its own, named after the run; return the states of all steps."""
    plan = execution.plan

    errors: list[Exception] = []

    @flow(
        name=plan.recipe,
        flow_run_name=execution.run,
        task_runner=make_task_runner(),
        persist_result=False,
        validate_parameters=False,
    )
    def pipeline(recipe: str, profile: str | None) -> State[Any]:
        try:
            return make_flow_state(perform_in_flow(execution, ended))
        except Exception as error:
            errors.append(error)
            raise

    try:
        # `return_state`: a failed step is shown by its state, and raises nothing. The stubs lack it here.
        pipeline(plan.file, plan.profile, return_state=True)  # pyright: ignore[reportCallIssue]
    finally:
        APILogHandler().flush()
        EventsWorker.drain_all()
    if errors:
        raise errors[0]
    return execution.states


def perform_in_flow(execution: Execution, ended: Callable[[], None]) -> dict[str, StepState]:
    """Perform an execution inside the current flow run: show the plan, run the steps, call `ended`, show results."""
    show_plan(execution)
    hide_empty_tracebacks()
    with set_on_signals(execution.stop):  # Prefect would crash the flow and leave its steps running
        with ProgressBars(execution.reporter, execution.plan, current_flow_run().id) as bars:
            execution.reporter = bars
            queue = open_queue(execution)
            futures: dict[str, PrefectConcurrentFuture[State[Any]]] = {}
            for step in execution.plan.steps:
                named = task(name=step.name, task_run_name=step.name, persist_result=False, cache_policy=NO_CACHE)(
                    _make_task(execution, step, bars)
                )
                needs = [allow_failure(futures[name]) for name in step.needs]
                # A thread runs the task: the stubs of `submit` name the base class of its future.
                submitted = named.submit(key=step.key, kind=step.kind, wait_for=needs)
                futures[step.name] = cast(PrefectConcurrentFuture[State[Any]], submitted)
                bars.expect_task_run(step.name, futures[step.name].task_run_id)
            queue.attend(futures.values())
            for step in execution.plan.steps:  # steps that Prefect did not start
                if step.name not in execution.states:
                    execution.perform(step)
        ended()
    show_ended(execution)
    if (
        compute_exit_code(execution.states) == EXIT_CANCELLED
    ):  # before Ray is closed, which may end this process with it
        get_run_logger().warning(
            "stopped; finished artifacts are kept. Continue here with Resume if the run is suspended, else with Retry, "
            "or: posttrain resume %s",
            execution.run,
        )
        APILogHandler().flush()
    return execution.states


def hide_empty_tracebacks() -> None:
    """Keep `NoneType: None` out of the logs of steps: Prefect logs a traceback with every state that is no success.

    It logs each such state as an error, too: a stopped step, and one that waits for it, is a warning here.
    """
    for change in (_drop_empty_traceback, _log_stops_as_warnings):
        logging.getLogger("prefect.task_runs").addFilter(change)


def _drop_empty_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0] is None:
        record.exc_info = None
    return True


def _log_stops_as_warnings(record: logging.LogRecord) -> bool:
    if record.levelno == logging.ERROR and record.getMessage().startswith(STOPPED):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _make_task(execution: Execution, step: Step, bars: ProgressBars) -> Any:
    def perform(key: str, kind: str) -> State[Any]:
        logger = get_run_logger()
        bars.set_task_run(step.name, current_task_run().id)
        return make_task_state(execution.perform(step, logger.info))

    return perform


def make_task_state(state: StepState) -> State[Any]:
    """Return the state that Prefect shows for an ended step: Failed for all but successes."""
    if state.gate:
        return Failed(name="GateFailed" if state.failed else "GateRejected", message=state.gate_text)
    if state.waits:
        return Completed(name="AwaitsApproval", message=state.gate_text)
    named = {"done": "Completed", "cached": "Cached", "skipped": "Skipped"}
    if state.state in named:
        message = "; ".join(filter(None, (state.reason, state.gate_text)))
        return Completed(name=named[state.state], message=message or "published")
    if state.state == "cancelled":
        return Cancelled(message=state.reason)
    return Failed(name=state.state.capitalize(), message=state.reason)


def make_flow_state(states: dict[str, StepState]) -> State[Any]:
    """Return the state that Prefect shows for an ended run."""
    message = describe_states(states.values())
    if all(state.state in ("cached", "skipped") for state in states.values()):
        cached = sum(state.state == "cached" for state in states.values())
        message = f"nothing changed: {cached} of {cached} cached"
    code = compute_exit_code(states)
    return Completed(message=message) if code == 0 else Failed(message=f"exit code {code}: {message}")
