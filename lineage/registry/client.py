"""MLflow's client: its addresses, and no telemetry."""

import logging
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lineage.layout import Layout
from lineage.registry.own_database import create_own_database
from schemas.errors import PlanError

if TYPE_CHECKING:
    from mlflow import MlflowClient

# An address that does not answer must fail within seconds, not minutes; mlflow reads this during its import.
SETTINGS = {"MLFLOW_LOGGING_LEVEL": "WARNING", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}


def tracking_uri(layout: Layout) -> str:
    """Return the address of the tracking store: MLFLOW_TRACKING_URI, else the checkout's own."""
    return os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri


def registry_uri(layout: Layout) -> str:
    """Return the address of the registry: MLFLOW_REGISTRY_URI, else that of the tracking store."""
    return os.environ.get("MLFLOW_REGISTRY_URI") or tracking_uri(layout)


def open_client(layout: Layout) -> "MlflowClient":
    """Return MLflow's client with both addresses, after seconds of import. Raise PlanError if they are unusable."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # after the import, which sets their levels
        logging.getLogger(name).setLevel(logging.WARNING)
    file = layout.make_state() / "mlflow.db"
    if registry_uri(layout) == f"sqlite:///{file}" and os.path.lexists(file) and not file.is_file():
        raise PlanError(f"MLflow at {file} cannot be used: it is not a regular file")  # MLflow would try for minutes
    try:
        if layout.mlflow_uri in (tracking_uri(layout), registry_uri(layout)):
            create_own_database(layout)
        return MlflowClient(tracking_uri(layout), registry_uri=registry_uri(layout))
    except Exception as error:  # database drivers raise errors of any type, whose text may hold the password
        raise PlanError(
            f"MLflow at {hide_credentials(registry_uri(layout))} cannot be used: {type(error).__name__}"
        ) from error


def is_registry_empty(layout: Layout) -> bool:
    """Return whether nothing was ever registered: the checkout's own file does not exist yet."""
    file = layout.state / "mlflow.db"
    return registry_uri(layout) == f"sqlite:///{file}" and not file.exists()


def hide_credentials(uri: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def dvc_uri(name: str) -> str:
    """Return an output by its name in DVC's cache: servers of MLflow refuse local paths as the source of a model."""
    return f"dvc:///files/md5/{name[:2]}/{name[2:]}"
