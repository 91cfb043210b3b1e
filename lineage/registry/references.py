"""Sources `dvc://` of registered models, for MLflow's server: references to artifacts, without files of their own."""

from pathlib import PurePosixPath
from typing import Any, NoReturn

from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.artifact_repo import ArtifactRepository


class References(ArtifactRepository):
    """An artifact store of MLflow that has no files.

    The page of a model's version asks for its file `MLmodel`. Without a store for the scheme of its source MLflow's
    server answers with status 500; with this one, with 404, which the page expects of models of other tools.
    """

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """Return no files."""
        return []

    def download_artifacts(self, artifact_path: str, dst_path: str | None = None, **options: Any) -> NoReturn:
        """Raise MlflowException with the place of the files."""
        raise self._missing(artifact_path)

    def _download_file(self, remote_file_path: str, local_path: str) -> NoReturn:
        raise self._missing(remote_file_path)

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> NoReturn:
        """Raise MlflowException: nothing is added to an artifact."""
        raise self._missing(local_file)

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> NoReturn:
        """Raise MlflowException: nothing is added to an artifact."""
        raise self._missing(local_dir)

    def _missing(self, path: str) -> MlflowException:
        advice = "its files are an artifact of posttrain: see the tag `uri`, or: posttrain path STEP"
        return MlflowException(
            f"this version has no file {PurePosixPath(path).name} in MLflow; {advice}", RESOURCE_DOES_NOT_EXIST
        )
