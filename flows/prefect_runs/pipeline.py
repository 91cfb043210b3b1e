"""A run as a Prefect flow: one task run per step, named after its stage, and artifacts with the plan and the results.

Prefect shows and orders; whether, where and how often a step runs is decided by the execution. The same body serves a
run from the command line, which opens its own flow run, and one that a deployment started.
"""

from collections.abc import Callable
from typing import Any, cast

from prefect import allow_failure, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler
from prefect.states import Completed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.execution.execute import Execution
from flows.execution.states import EXIT_CANCELLED, StepState, compute_exit_code
from flows.prefect_runs.approval_form import open_queue
from flows.prefect_runs.artifacts import ProgressBars, show_ended, show_plan
from flows.prefect_runs.flow_context import current_flow_run, current_task_run
from flows.processes.stop_signals import set_on_signals
from schemas.plan import Step

THREADS = 1000
"""Steps of a flow that may be under way or waiting at once; a thread is only made when it is needed."""


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
    with set_on_signals(execution.stop):  # Prefect would crash the flow and leave its steps running
        with ProgressBars(execution.reporter, execution.plan, current_flow_run().id) as bars:
            execution.reporter = bars
            desk = open_queue(execution)
            futures: dict[str, Any] = {}  # futures of threads; the stubs of `submit` name their base class
            for step in execution.plan.steps:
                named = task(name=step.name, task_run_name=step.name, persist_result=False, cache_policy=NO_CACHE)(
                    _make_task(execution, step, bars)
                )
                needs = [allow_failure(futures[name]) for name in step.needs]
                futures[step.name] = named.submit(key=step.key, kind=step.kind, wait_for=needs)
                bars.expect_task_run(step.name, futures[step.name].task_run_id)
            desk.attend(futures.values())
            for step in execution.plan.steps:  # what Prefect did not let begin, for reasons of its own
                if step.name not in execution.states:
                    execution.perform(step)
        ended()
    show_ended(execution)
    if (
        compute_exit_code(execution.states) == EXIT_CANCELLED
    ):  # before Ray is closed, which may end this process with it
        get_run_logger().warning(
            "stopped; what is finished stays. Go on: Retry here, or posttrain resume %s", execution.run
        )
        APILogHandler().flush()
    return execution.states


def _make_task(execution: Execution, step: Step, bars: ProgressBars) -> Any:
    def perform(key: str, kind: str) -> State[Any]:
        logger = get_run_logger()
        bars.set_task_run(step.name, current_task_run().id)
        return make_task_state(execution.perform(step, logger.info))

    return perform


def make_task_state(state: StepState) -> State[Any]:
    """Return how Prefect shows the end of a step; everything that is no success is Failed, so dependants say why."""
    if state.gate:
        return Failed(name="GateFailed", message=state.gate_text)
    if state.waits:
        return Completed(name="AwaitsApproval", message=state.gate_text)
    named = {"done": "Completed", "cached": "Cached", "skipped": "Skipped"}
    if state.state in named:
        message = "; ".join(filter(None, (state.reason, state.gate_text)))
        return Completed(name=named[state.state], message=message or "published")
    return Failed(name=state.state.capitalize(), message=state.reason)


def make_flow_state(states: dict[str, StepState]) -> State[Any]:
    """Return how Prefect shows the end of a run."""
    counts: dict[str, int] = {}
    for state in states.values():
        counts[state.state] = counts.get(state.state, 0) + 1
    message = ", ".join(f"{count} {name}" for name, count in counts.items())
    if set(counts) <= {"cached", "skipped"}:
        message = f"nothing changed: {counts.get('cached', 0)} of {counts.get('cached', 0)} cached"
    code = compute_exit_code(states)
    return Completed(message=message) if code == 0 else Failed(message=f"exit code {code}: {message}")
