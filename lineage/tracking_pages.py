"""Where MLflow's pages show a run, and its report beside its curves there, so that a browser reaches both."""

import os
from pathlib import Path

from lineage.layout import Layout
from lineage.tracking import MARK


def run_page(layout: Layout, run: str) -> str | None:
    """The part of the address of a run's page behind the server's; None while MLflow does not know the run."""
    if (parent := _parent(layout, run)) is None:
        return None
    return f"/#/experiments/{_client(layout).get_run(parent).info.experiment_id}/runs/{parent}"


def add_report(layout: Layout, run: str, report: Path) -> None:
    """Lay a run's report beside its curves in MLflow; where MLflow does not know the run, nothing happens."""
    if (parent := _parent(layout, run)) is not None:
        _client(layout).log_artifact(parent, str(report))


def _parent(layout: Layout, run: str) -> str | None:
    mark = layout.run(run) / MARK
    return mark.read_text().strip() if mark.is_file() else None


def _client(layout: Layout):
    from mlflow import MlflowClient

    return MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri)
