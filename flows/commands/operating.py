"""Commands about services (also for coding agents) and deployments, and the check of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, console
from schemas.errors import PlanError

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0: any free one.")]


def up(
    prefect_port: Port = 4200,
    mlflow_port: Port = 5000,
    database: Annotated[
        str | None,
        typer.Option(metavar="postgresql://USER@HOST:PORT/NAME", help="Database for records from now on; or: sqlite."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Flow runs of deployments at a time.")] = 4,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="KIND/NAME", help="Notification block that Prefect's automations use: slack-webhook/team."
        ),
    ] = None,
) -> None:
    """Run Prefect's server, MLflow's server, a worker for deployments and the watcher of changes until Ctrl-C."""
    from flows.servers.up import run_services
    from lineage.layout import Layout

    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    raise typer.Exit(run_services(Layout.find(), console, **ports, database=database, limit=limit, notify=notify))


def deploy(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe YAMLs.")] = [],  # noqa: B006
    every: Annotated[bool, typer.Option("--all", help="All recipes in recipes/.")] = False,
    prune: Annotated[bool, typer.Option(help="Remove deployments of this checkout whose recipe is gone.")] = False,
    prefect_yaml: Annotated[
        bool, typer.Option("--prefect-yaml", help="Write prefect.yaml instead, for `prefect deploy --all`.")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Run only the version that recipe.lock pins, until deployed again.")
    ] = False,
) -> None:
    """Create or update the Prefect deployment of every recipe, with a form to start it from the UI."""
    from flows.deployments.deploy import deploy_recipes
    from lineage.layout import Layout

    layout = Layout.find()
    raise typer.Exit(
        deploy_recipes(recipes, layout, every=every, prune=prune, prefect_yaml=prefect_yaml, locked=locked)
    )


def mcp(
    allow_run: Annotated[bool, typer.Option("--allow-run", help="Offer the tools `run` and `resume` too.")] = False,
) -> None:
    """Serve the verbs that read this folder's recipes and runs to coding agents, as MCP tools over stdin and stdout."""
    try:
        from flows.commands.mcp_server import make_server
    except ModuleNotFoundError as error:
        raise PlanError(f"{error}: pip install 'posttrain[environments]'") from error
    make_server(Path.cwd(), allow_run).run("stdio")


def doctor(as_json: AsJson = False) -> None:
    """Check this machine, and list what is missing."""
    from flows.commands.doctor import report_machine

    raise typer.Exit(report_machine(console, as_json=as_json))
