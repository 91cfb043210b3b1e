"""`posttrain deploy`: one Prefect deployment per recipe, with a form to start it from the UI."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from flows.deployments.deployables import (
    ENTRYPOINT,
    PULL,
    Deployable,
    list_recipe_files,
    make_deployables,
    make_environment,
)
from flows.servers.prefect_server import is_healthy, make_prefect_environment
from flows.servers.services import POOL
from flows.servers.up import read_addresses
from lineage.audit.log import append
from lineage.layout import Layout
from schemas.errors import PlanError


def deploy_recipes(
    recipes: list[Path], layout: Layout, *, every: bool, prune: bool, prefect_yaml: bool, locked: bool = False
) -> int:
    """Deploy recipes, print one line for each, and return the exit code: 3 if one is not valid.

    `locked` pins each to its lock; without it the deployment is no longer pinned.

    Raise PlanError if no server answers, or nothing was named.
    """
    if not recipes and not every:
        raise PlanError("no recipes named: give their files, or --all for all of them")
    made, wrong = make_deployables([*recipes, *(list_recipe_files(layout) if every else ())], layout, locked=locked)
    for error in wrong:
        print(error, file=sys.stderr)
    if prefect_yaml:
        print(f"wrote {os.path.relpath(write_prefect_yaml(made, layout))}: {len(made)} deployments")
        for one in made:
            _log_deployed(one, layout)
    else:
        for line in _deploy_to_server(made, layout, prune=prune):
            print(line)
    return 3 if wrong else 0


def find_server(layout: Layout) -> str:
    """Return the API of the server to deploy to: PREFECT_API_URL, or that of `posttrain up`. Raise PlanError."""
    configured = os.environ.get("PREFECT_API_URL")
    url = configured or read_addresses(layout).get("prefect")
    if url is None:
        raise PlanError("no Prefect server to deploy to: start one with `posttrain up`, or set PREFECT_API_URL")
    if not is_healthy(url):
        which = "PREFECT_API_URL" if configured else "of `posttrain up`"
        raise PlanError(f"Prefect's server at {url} ({which}) does not answer")
    return url


def connect_server(layout: Layout) -> None:
    """Set the variables of the server to deploy to, which Prefect reads when it is imported. Raise PlanError."""
    os.environ.update(make_prefect_environment(layout) | {"PREFECT_API_URL": find_server(layout)})


def _deploy_to_server(made: list[Deployable], layout: Layout, *, prune: bool) -> Iterator[str]:
    """Create or update the deployments in turn; yield a line for each.

    With `prune`, those of this checkout whose recipe is gone are removed; without it they are listed.
    """
    connect_server(layout)
    # imports prefect, which reads the variables set above
    from flows.deployments.prefect_deployments import ensure_pool, find_vanished, put_deployment

    ensure_pool(POOL)
    for one in made:
        _log_deployed(one, layout)
        yield put_deployment(one, layout)
    yield from find_vanished(layout, prune)


def _log_deployed(one: Deployable, layout: Layout) -> None:
    """Record what was deployed in the audit log, and the lock that pins it."""
    append(layout, "deployed", recipe=one.recipe.name, file=one.file, locked=one.lock.digest if one.lock else None)


def write_prefect_yaml(made: list[Deployable], layout: Layout) -> Path:
    """Write `prefect.yaml` into the checkout, for `prefect deploy --all` on another server; return its path."""
    from flows.deployments.schedules import make_yaml  # imports prefect

    deployments = [
        {
            "name": one.recipe.name,
            "description": one.description,
            "tags": one.tags,
            "entrypoint": ENTRYPOINT,
            "parameters": one.parameters,
            "work_pool": {"name": POOL, "job_variables": {"env": make_environment(layout)}},
            **make_yaml(one.recipe),
        }
        for one in made
    ]
    content = {"name": "posttrain", "pull": PULL, "deployments": deployments}
    file = layout.root / "prefect.yaml"
    file.write_text("# Written by `posttrain deploy --prefect-yaml`.\n" + yaml.safe_dump(content, sort_keys=False))
    return file
