"""The application of MLflow's server, which knows the sources of posttrain's registered models."""

from mlflow.server.fastapi_app import app
from mlflow.store.artifact.artifact_repository_registry import (
    _artifact_repository_registry as registry,  # pyright: ignore[reportPrivateUsage]
)

from lineage.registry.references import References

registry.register("dvc", References)

__all__ = ["app"]
