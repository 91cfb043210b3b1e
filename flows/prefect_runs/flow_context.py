"""The flow run and the task run in which this code runs, for modules that must not import each other for it."""

from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.context import FlowRunContext, TaskRunContext


def current_flow_run() -> FlowRun:
    """Return the flow run of this thread. Raise RuntimeError outside of one."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise RuntimeError("no flow run is active in this thread")
    return context.flow_run


def current_task_run() -> TaskRun:
    """Return the task run of this thread. Raise RuntimeError outside of one."""
    context = TaskRunContext.get()
    if context is None:
        raise RuntimeError("no task run is active in this thread")
    return context.task_run
