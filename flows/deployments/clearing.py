"""Scheduled garbage collection: a deployment that calls `gc` with a policy."""

import io
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from prefect.utilities.callables import parameter_schema
from rich.console import Console

from flows.deployments.deployables import PULL, TAG, make_environment
from flows.deployments.prefect_deployments import ensure_pool
from flows.deployments.schedules import describe_schedule, make_times
from flows.history.garbage import Policy, collect_garbage
from flows.servers.services import POOL
from lineage.layout import Layout
from schemas.errors import PosttrainError
from schemas.package import ROOT
from schemas.schedule import Schedule

ENTRYPOINT = "flows/deployments/clearing.py:gc"
NAME = "posttrain-gc"
"""Name of the deployment's flow."""


@flow(name=NAME, persist_result=False)
def gc(last: int = 10, keep: int = 0, by: str = "", champions: int | None = None, remove: bool = False) -> State[Any]:
    """List, and with `remove` clear, what this checkout does not need (docs/keeping.md).

    Args:
        last: Keep what this many latest runs used.
        keep: Keep this many best artifacts by a metric, with their runs.
        by: That metric.
        champions: Keep this many models before each champion; empty: all.
        remove: Remove it; otherwise only list it.
    """
    output = io.StringIO()
    console = Console(file=output, width=160, emoji=False)
    try:
        collect_garbage(Layout.find(), Policy(last, keep, by, champions), console, yes=remove, as_json=False)
    except PosttrainError as error:
        get_run_logger().error(str(error))
        return Failed(message=str(error).splitlines()[0])
    lines = [line for line in output.getvalue().splitlines() if line.strip()]
    for line in lines:
        get_run_logger().info(line)
    create_markdown_artifact(key="gc", markdown="```\n" + "\n".join(lines) + "\n```", description="What gc found")
    return Completed(message="; ".join(lines[-2:]))


def put_schedule(layout: Layout, schedule: Schedule | None, policy: Policy, *, remove: bool) -> str:
    """Create or update the checkout's deployment of `gc`, or delete it without a schedule; return a line about it."""
    name = layout.root.name
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow_from_name(NAME)
        if schedule is None:
            existing = client.read_deployments(
                deployment_filter=DeploymentFilter.model_validate({"name": {"any_": [name]}, "tags": {"all_": [TAG]}})
            )
            ours = [deployment for deployment in existing if deployment.flow_id == flow_id]
            for deployment in ours:
                client.delete_deployment(deployment.id)
            return f"{NAME}/{name}: {'removed' if ours else 'there was none'}"
    ensure_pool(POOL)
    times = make_times(schedule)
    assert times is not None
    made = {"schedule": times.model_dump(mode="json"), "parameters": {}, "slug": "gc", "active": True}
    parameters = {"last": policy.last, "keep": policy.keep, "by": policy.by, "champions": policy.champions}
    with get_client(sync_client=True) as client:
        client.create_deployment(
            flow_id=flow_id,
            name=name,
            description="Garbage collection of this checkout: docs/keeping.md",
            tags=[TAG],
            entrypoint=ENTRYPOINT,
            path=str(ROOT),
            pull_steps=PULL,
            parameters={**parameters, "remove": remove},
            parameter_openapi_schema=parameter_schema(gc).model_dump_for_openapi(),
            enforce_parameter_schema=True,
            work_pool_name=POOL,
            job_variables={"env": make_environment(layout)},
            schedules=[DeploymentScheduleCreate.model_validate(made)],
            concurrency_limit=1,
        )
    what = "removes what nothing needs" if remove else "lists what it would remove; add --yes to remove it"
    return f"{NAME}/{name}: {describe_schedule(schedule)}; {what}"
