"""MLflow's client: where it looks, and that it tells nobody anything."""

import logging
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lineage.layout import Layout
from schemas.errors import PlanError

if TYPE_CHECKING:
    from mlflow import MlflowClient

# An address that does not answer must be told within seconds, not minutes; read while mlflow is imported.
SETTINGS = {"MLFLOW_LOGGING_LEVEL": "WARNING", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}


def tracking_uri(layout: Layout) -> str:
    """Where runs are kept: MLFLOW_TRACKING_URI, else the checkout's own store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri


def registry_uri(layout: Layout) -> str:
    """Where registered models are kept: MLFLOW_REGISTRY_URI, else with the runs."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking_uri(layout)


def open_client(layout: Layout) -> "MlflowClient":
    """MLflow's client with both addresses; takes seconds the first time. Raises PlanError when they cannot be used."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # after the import, which sets them
        logging.getLogger(name).setLevel(logging.WARNING)
    file = layout.make_state() / "mlflow.db"
    if registry_uri(layout) == f"sqlite:///{file}" and os.path.lexists(file) and not file.is_file():
        raise PlanError(f"MLflow at {file} cannot be used: that is no regular file")  # MLflow would try for minutes
    try:
        return MlflowClient(tracking_uri(layout), registry_uri=registry_uri(layout))
    except Exception as error:  # drivers of databases raise what they like, with the password in it
        raise PlanError(
            f"MLflow at {hide_credentials(registry_uri(layout))} cannot be used: {type(error).__name__}"
        ) from error


def is_registry_empty(layout: Layout) -> bool:
    """Whether nothing was ever registered: the checkout's own file has not been made yet. Costs nothing."""
    file = layout.state / "mlflow.db"
    return registry_uri(layout) == f"sqlite:///{file}" and not file.exists()


def hide_credentials(uri: str) -> str:
    """An address without user and password."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def dvc_uri(name: str) -> str:
    """An output by its name in DVC's cache: servers of MLflow refuse local paths as the source of a model."""
    return f"dvc:///files/md5/{name[:2]}/{name[2:]}"
