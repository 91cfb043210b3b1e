"""MLflow's store without anything in it: making one takes seconds, so a process of tests makes one."""

import tempfile
from functools import cache
from pathlib import Path

import pytest

from lineage.layout import Layout
from lineage.registry.client import open_client


@cache
def empty_registry() -> bytes:
    """The file of an empty store."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            patch.delenv(name, raising=False)
        layout = Layout(Path(folder))
        open_client(layout).search_registered_models()
        return (layout.state / "mlflow.db").read_bytes()


def lay_empty_registry(layout: Layout) -> None:
    """Give a checkout an empty store."""
    layout.state.mkdir(parents=True, exist_ok=True)
    (layout.state / "mlflow.db").write_bytes(empty_registry())
