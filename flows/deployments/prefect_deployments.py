"""Deployments on Prefect's server."""

from collections.abc import Iterator

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.deployments.deployables import ENTRYPOINT, PULL, TAG, Deployable, make_environment
from flows.deployments.schedules import make_concurrency, make_prefect_schedules
from flows.servers.services import POOL
from lineage.layout import Layout
from schemas.package import ROOT

PAGE = 100
"""Deployments per request."""


def ensure_pool(name: str) -> None:
    """Create the work pool if there is none; one of another type is left as it is."""
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            pool = WorkPoolCreate(name=name, type="process", base_job_template=template)
            try:
                client.create_work_pool(pool)
            except ObjectAlreadyExists:
                return


def put_deployment(one: Deployable, layout: Layout) -> str:
    """Create or update a deployment; return a line that says which."""
    limits = make_concurrency(one.recipe)
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name(one.recipe.name)
        name = f"{one.recipe.name}/{one.recipe.name}"
        is_there = any(d.flow_id == flow and d.name == one.recipe.name for d in _list_tagged(client))
        client.create_deployment(
            flow_id=flow,
            name=one.recipe.name,
            description=one.description,
            tags=one.tags,
            entrypoint=ENTRYPOINT,
            path=str(ROOT),
            pull_steps=PULL,
            parameters=one.parameters,
            parameter_openapi_schema=one.form,
            enforce_parameter_schema=True,
            work_pool_name=POOL,
            job_variables={"env": make_environment(layout)},
            schedules=make_prefect_schedules(one.recipe),
            concurrency_limit=None if limits is None else 1,
            concurrency_options=limits,
        )
    note = ", pinned to its lock" if one.lock else ""
    return f"{name}: {'updated' if is_there else 'deployed'} ({one.file}{note})"


def find_vanished(layout: Layout, prune: bool) -> Iterator[str]:
    """Yield deployments of this checkout whose recipe is gone: removed with `prune`, else listed."""
    with get_client(sync_client=True) as client:
        for deployment in list_deployments(client, layout):
            file = deployment.parameters["recipe"]
            if (layout.root / file).is_file():
                continue
            if prune:
                client.delete_deployment(deployment.id)
            yield f"{deployment.name}: {'removed' if prune else 'its recipe is gone (--prune removes it)'} ({file})"


def list_deployments(client: SyncPrefectClient, layout: Layout) -> list[DeploymentResponse]:
    """Return the deployments of this checkout; a server may have those of others too."""
    root = str(layout.root)
    own = [d for d in _list_tagged(client) if (d.job_variables or {}).get("env", {}).get("POSTTRAIN_ROOT") == root]
    return [deployment for deployment in own if deployment.parameters.get("recipe")]


def _list_tagged(client: SyncPrefectClient) -> Iterator[DeploymentResponse]:
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    offset = 0
    while page := client.read_deployments(deployment_filter=tagged, limit=PAGE, offset=offset):
        yield from page
        offset += len(page)
