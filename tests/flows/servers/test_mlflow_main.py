"""MLflow's server as `posttrain up` starts it: pages of registered models whose files MLflow does not have."""

import pytest
from mlflow import MlflowClient

pytestmark = [  # of MLflow's own code, when its server is imported
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_the_page_of_a_version_gets_404_for_files_that_mlflow_does_not_have(tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri, registry_uri=uri)
    client.create_registered_model("small.tuned")
    client.create_model_version("small.tuned", "dvc:///files/md5/ab/cdef.dir")
    from mlflow import server
    from mlflow.server import handlers

    from flows.servers.mlflow_app import app  # registers the scheme for the server of this process

    monkeypatch.setattr(handlers, "_tracking_store", client._tracking_client.store)
    monkeypatch.setattr(handlers, "_model_registry_store", client._get_registry_client().store)
    page = "/model-versions/get-artifact?path=MLmodel&name=small.tuned&version=1"
    assert app.routes
    answer = server.app.test_client().get(page, headers={"Host": "localhost"})
    assert answer.status_code == 404
    assert "posttrain path" in answer.json["message"]


def test_the_servers_processes_load_the_application_with_the_scheme(monkeypatch):
    from mlflow import server

    from flows.servers import mlflow_main

    monkeypatch.setattr(server, "_build_uvicorn_command", server._build_uvicorn_command)
    before = server._build_uvicorn_command(None, "127.0.0.1", 5000, 1, mlflow_main.APP)
    mlflow_main.use_own_app()
    after = server._build_uvicorn_command(None, "127.0.0.1", 5000, 1, mlflow_main.APP)
    assert before[-1] == mlflow_main.APP
    assert after == [*before[:-1], "flows.servers.mlflow_app:app"]
