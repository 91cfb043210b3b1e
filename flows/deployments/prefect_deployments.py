"""Deployments as Prefect's server keeps them."""

from collections.abc import Iterator

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.deployments.deployables import ENTRYPOINT, PULL, TAG, Deployable, make_environment
from flows.deployments.schedules import make_concurrency, make_prefect_schedules
from flows.planning.closure import HOUSE
from flows.servers.services import POOL
from lineage.layout import Layout

PAGE = 100
"""Deployments asked for at once."""


def ensure_pool(name: str) -> None:
    """Make the work pool where there is none; one of another type is left as it is."""
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
    """Create or update a deployment; returns a line that says which."""
    limits = make_concurrency(one.recipe)
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name(one.recipe.name)
        name = f"{one.recipe.name}/{one.recipe.name}"
        is_there = any(d.flow_id == flow and d.name == one.recipe.name for d in _list_own(client))
        client.create_deployment(
            flow_id=flow,
            name=one.recipe.name,
            description=one.description,
            tags=one.tags,
            entrypoint=ENTRYPOINT,
            path=str(HOUSE),
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
    held = ", held to its lock" if one.held else ""
    return f"{name}: {'updated' if is_there else 'deployed'} ({one.file}{held})"


def find_vanished(layout: Layout, prune: bool) -> Iterator[str]:
    """Deployments of this checkout whose recipe file is gone: removed with `prune`, else told."""
    with get_client(sync_client=True) as client:
        for found in _list_own(client):
            file = str(found.parameters.get("recipe", ""))
            mine = (found.job_variables or {}).get("env", {}).get("POSTTRAIN_ROOT") == str(layout.root)
            if not mine or not file or (layout.root / file).is_file():
                continue
            if prune:
                client.delete_deployment(found.id)
            yield f"{found.name}: {'removed' if prune else 'its recipe is gone (--prune removes it)'} ({file})"


def _list_own(client: SyncPrefectClient) -> Iterator:
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    offset = 0
    while found := client.read_deployments(deployment_filter=tagged, limit=PAGE, offset=offset):
        yield from found
        offset += len(found)
