"""The Prefect flow on top of an execution: one flow, one untagged task run per step, named after its stage.

Prefect shows and orders; whether a step runs, where, and how often it is tried is the execution's business.
"""

from typing import Any

from prefect import allow_failure, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler
from prefect.states import Completed, Crashed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.execute import Execution
from flows.interrupts import stopped_by_signals
from flows.states import StepState, exit_code
from schemas.plan import Step


def run_flow(execution: Execution) -> dict[str, StepState]:
    """Carry out an execution as a flow run named after the run; returns the states of all steps."""
    plan = execution.plan
    runner = ThreadPoolTaskRunner(max_workers=max(1, len(plan.steps)))

    @flow(name=plan.recipe, flow_run_name=execution.run, task_runner=runner, persist_result=False,
          validate_parameters=False)  # fmt: skip
    def pipeline(recipe: str, profile: str | None) -> State[Any]:
        futures: dict[str, Any] = {}
        for step in plan.steps:
            named = task(name=step.name, task_run_name=step.name, persist_result=False, cache_policy=NO_CACHE)(
                _task_of(execution, step)
            )
            needs = [allow_failure(futures[name]) for name in step.needs]
            futures[step.name] = named.submit(key=step.key, kind=step.kind, wait_for=needs)
        with stopped_by_signals(execution.stop):  # Prefect would crash the flow and leave its steps running
            for future in futures.values():
                future.wait()
        return _flow_state(execution)

    try:
        pipeline(plan.file, plan.profile, return_state=True)
    finally:
        APILogHandler().flush()
        EventsWorker.drain_all()
    return execution.states


def _task_of(execution: Execution, step: Step) -> Any:
    def perform(key: str, kind: str) -> State[Any]:
        logger = get_run_logger()
        return task_state(execution.perform(step, logger.info))

    return perform


def task_state(state: StepState) -> State[Any]:
    """How Prefect shows the end of a step."""
    if state.gate:
        return Failed(name="GateFailed", message=f"gate failed: {state.gate}")
    named = {"done": "Completed", "cached": "Cached", "skipped": "Skipped"}
    if state.state in named:
        return Completed(name=named[state.state], message=state.reason or "published")
    if state.state == "cancelled":
        return Crashed(name="Cancelled", message=state.reason)
    return Failed(name=state.state.capitalize(), message=state.reason)


def _flow_state(execution: Execution) -> State[Any]:
    counts: dict[str, int] = {}
    for state in execution.states.values():
        counts[state.state] = counts.get(state.state, 0) + 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    code = exit_code(execution.states)
    return Completed(message=said) if code == 0 else Failed(message=f"exit code {code}: {said}")
