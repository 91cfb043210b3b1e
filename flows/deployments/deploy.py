"""`posttrain deploy`: one deployment of Prefect per recipe, which anybody can start from a form in its UI."""

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
    """Deploy recipes, say what became of each, and return the exit code: 3 when one of them is not valid.

    `locked`: each is held to its lock from now on; without, what held it before does not any more.

    Raises PlanError when no server answers, or nothing was named.
    """
    if not recipes and not every:
        raise PlanError("which recipes? Name some, or all of them: posttrain deploy --all")
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
    """The API of the server to deploy to: PREFECT_API_URL, or that of `posttrain up`. Raises PlanError."""
    given = os.environ.get("PREFECT_API_URL")
    url = given or (read_addresses(layout) or {}).get("prefect")
    if url is None:
        raise PlanError("no Prefect server to deploy to: start one with `posttrain up`, or set PREFECT_API_URL")
    if not is_healthy(url):
        which = "PREFECT_API_URL" if given else "of `posttrain up`"
        raise PlanError(f"Prefect's server at {url} ({which}) does not answer")
    return url


def _deploy_to_server(made: list[Deployable], layout: Layout, *, prune: bool) -> Iterator[str]:
    """Create or update the deployments, one after the other; yields a line for each.

    With `prune`, those of this checkout whose recipe is gone are removed; without, they are told.
    """
    os.environ.update(make_prefect_environment(layout) | {"PREFECT_API_URL": find_server(layout)})
    from flows.deployments.prefect_deployments import ensure_pool, find_vanished, put_deployment

    ensure_pool(POOL)
    for one in made:
        _log_deployed(one, layout)
        yield put_deployment(one, layout)
    yield from find_vanished(layout, prune)


def _log_deployed(one: Deployable, layout: Layout) -> None:
    """Say in the audit log what was deployed, and which lock holds it."""
    append(layout, "deployed", recipe=one.recipe.name, file=one.file, locked=one.held.digest if one.held else None)


def write_prefect_yaml(made: list[Deployable], layout: Layout) -> Path:
    """Write `prefect.yaml` beside the code, for `prefect deploy --all` on a server of one's own; returns its path."""
    from flows.deployments.schedules import make_yaml

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
