"""Find flow runs whose process died without reporting: killed with the worker, or by a machine that went down.

Prefect keeps showing them as running, and their place keeps others waiting.
"""

import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Crashed

ACTIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
START_LIMIT = timedelta(minutes=3)
"""Time within which a worker has started a process for a flow run that it took."""
MESSAGE = "its process died: killed, or the machine went down; Retry continues from the finished steps"
CANCELLED = "cancelled; Retry continues from the finished steps"


def mark_crashed(client: SyncPrefectClient, deployments: Iterable[UUID]) -> list[FlowRun]:
    """Mark dead flow runs of some deployments as crashed, with their tasks; return them. Their place is free then."""
    ids = list(deployments)
    if not ids:
        return []
    active = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": list(ACTIVE)}}}),
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": ids}}),
        limit=200,
    )
    dead = [run for run in active if is_dead(run, datetime.now(UTC))]
    for run in dead:
        is_cancelled = run.state_type == StateType.CANCELLING  # the worker may not have reported its end yet
        end = Cancelled(message=CANCELLED) if is_cancelled else Crashed(message=MESSAGE)
        client.set_flow_run_state(run.id, end, force=True)
        _end_tasks(client, run.id, end)
    return dead


def _end_tasks(client: SyncPrefectClient, run: UUID, end: State[object]) -> None:
    """Give the end of a flow run to its task runs that Prefect still shows as running."""
    running = client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run]}}),
        task_run_filter=TaskRunFilter.model_validate({"state": {"type": {"any_": [StateType.RUNNING]}, "name": None}}),
    )
    for task in running:
        client.set_task_run_state(task.id, end, force=True)


def is_dead(run: FlowRun, now: datetime) -> bool:
    """Return whether a flow run that should be active has no process; on another machine that is never known."""
    host, _, number = (run.infrastructure_pid or "").rpartition(":")
    since = run.state.timestamp if run.state else run.created or now
    if not number.isdigit():
        return run.state_type == StateType.PENDING and now.timestamp() - since.timestamp() > START_LIMIT.total_seconds()
    if host and host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(number))
        is_another = process.create_time() > since.timestamp() + 1 and run.state_type != StateType.PENDING
        return is_another or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
