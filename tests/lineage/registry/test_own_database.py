"""The checkout's own MLflow database is there with all tables, or not at all."""

import sqlite3
from contextlib import closing

import pytest
from mlflow import MlflowClient

from lineage.layout import Layout
from lineage.registry.own_database import create_own_database


class Killed(BaseException):
    """The process ended here."""


def test_a_creation_that_was_cut_off_leaves_no_database_and_the_next_one_is_whole(tmp_path, monkeypatch):
    layout = Layout(tmp_path)
    file = layout.state / "mlflow.db"

    def is_killed(engine):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.store.db.utils._upgrade_db", is_killed)  # after the first of two groups of tables
        with pytest.raises(Killed):
            create_own_database(layout)
    assert list(layout.state.glob("*mlflow*")) == []

    create_own_database(layout)
    assert [path.name for path in layout.state.glob("*mlflow*")] == ["mlflow.db"]
    with closing(sqlite3.connect(file)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
    assert {"experiments", "runs", "metrics", "registered_models", "model_versions", "alembic_version"} <= tables

    client = MlflowClient(f"sqlite:///{file}", registry_uri=f"sqlite:///{file}")
    run = client.create_run(client.create_experiment("recipe")).info.run_id
    client.log_metric(run, "loss", 0.5)
    client.create_registered_model("model")
    content = file.read_bytes()
    create_own_database(layout)
    assert file.read_bytes() == content
    assert client.get_run(run).data.metrics == {"loss": 0.5}
