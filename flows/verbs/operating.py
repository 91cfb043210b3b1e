"""Keep the house."""

from typing import Annotated

import typer

from flows.verbs.options import console

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0: any free one.")]


def up(
    prefect_port: Port = 4200,
    mlflow_port: Port = 5000,
    database: Annotated[
        str | None,
        typer.Option(metavar="postgresql://USER@HOST:PORT/NAME", help="Keep records there from now on; or: sqlite."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Flow runs of deployments at a time.")] = 4,
) -> None:
    """Keep Prefect's server, MLflow's, a worker for deployments and the watcher of changes running until Ctrl-C."""
    from flows.up import up
    from lineage.layout import Layout

    ports = {"prefect_port": prefect_port, "mlflow_port": mlflow_port}
    raise typer.Exit(up(Layout.find(), console, **ports, database=database, limit=limit))


def doctor() -> None:
    """Say what this machine has and what is missing."""
    from flows.doctor import report_machine

    raise typer.Exit(report_machine(console))
