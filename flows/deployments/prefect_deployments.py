"""Deployments as Prefect's server keeps them."""

from collections.abc import Iterator

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.deployments.deployables import ENTRYPOINT, PULL, TAG, Deployable, environment
from flows.deployments.schedules import concurrency, prefect_schedules
from flows.servers.services import POOL
from lineage.layout import Layout
from schemas.package import ROOT

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


def put(one: Deployable, layout: Layout) -> str:
    """Create or update a deployment; returns a line that says which."""
    limits = concurrency(one.recipe)
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name(one.recipe.name)
        name = f"{one.recipe.name}/{one.recipe.name}"
        is_there = any(d.flow_id == flow and d.name == one.recipe.name for d in _ours(client))
        client.create_deployment(
            flow_id=flow, name=one.recipe.name, description=one.description, tags=one.tags, entrypoint=ENTRYPOINT,
            path=str(ROOT), pull_steps=PULL,
            parameters=one.parameters, parameter_openapi_schema=one.form, enforce_parameter_schema=True,
            work_pool_name=POOL, job_variables={"env": environment(layout)}, schedules=prefect_schedules(one.recipe),
            concurrency_limit=None if limits is None else 1, concurrency_options=limits,
        )  # fmt: skip
    held = ", held to its lock" if one.held else ""
    return f"{name}: {'updated' if is_there else 'deployed'} ({one.file}{held})"


def vanished(layout: Layout, prune: bool) -> Iterator[str]:
    """Deployments of this checkout whose recipe file is gone: removed with `prune`, else told."""
    with get_client(sync_client=True) as client:
        for found in _ours(client):
            file = str(found.parameters.get("recipe", ""))
            mine = (found.job_variables or {}).get("env", {}).get("POSTTRAIN_ROOT") == str(layout.root)
            if not mine or not file or (layout.root / file).is_file():
                continue
            if prune:
                client.delete_deployment(found.id)
            yield f"{found.name}: {'removed' if prune else 'its recipe is gone (--prune removes it)'} ({file})"


def _ours(client: SyncPrefectClient) -> Iterator:
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    offset = 0
    while found := client.read_deployments(deployment_filter=tagged, limit=PAGE, offset=offset):
        yield from found
        offset += len(found)
