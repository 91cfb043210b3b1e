"""The program of MLflow's server: `mlflow server`, whose processes load `flows.servers.mlflow_app`."""

from typing import Any

from mlflow import server
from mlflow.cli import cli

from schemas.package import import_path

APP = "mlflow.server.fastapi_app:app"
"""The application that MLflow itself would load."""


def use_own_app() -> None:
    """Make the processes of MLflow's server load the application that knows posttrain's sources."""
    build = server._build_uvicorn_command  # pyright: ignore[reportPrivateUsage]

    def build_with_own_app(*args: Any, **options: Any) -> list[str]:
        own = f"{import_path('flows.servers.mlflow_app')}:app"
        return [own if word == APP else word for word in build(*args, **options)]

    server._build_uvicorn_command = build_with_own_app  # pyright: ignore[reportPrivateUsage]


if __name__ == "__main__":
    use_own_app()
    cli()
