"""What `posttrain up` keeps running: Prefect's server, MLflow's, a worker for deployments, the watcher of changes."""

import base64
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from datetime import datetime

from flows.servers.prefect_server import HOST, answers, prefect_environment, server_environment, with_house
from flows.servers.supervisor import Service
from lineage.layout import Layout
from schemas.package import import_path

POOL = "posttrain"
"""The work pool of all deployments; its type is `process`: a flow run is a process of this machine."""
POLL = "2"
"""Seconds between looks of the worker for due runs."""


def prefect_service(layout: Layout, api: str) -> Service:
    """Prefect's server, answering at `api`."""
    port = api.removesuffix("/api").rpartition(":")[2]
    return Service(
        "prefect",
        [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", port],
        _environment(layout, api) | server_environment(layout),
        lambda since: answers(f"{api}/health"),
    )


def mlflow_service(layout: Layout, url: str) -> Service:
    """MLflow's server on the store that runs write to; the store's address may hold a password: it is no argument."""
    port = url.rpartition(":")[2]
    more = {
        "MLFLOW_BACKEND_STORE_URI": os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri,
        "MLFLOW_ARTIFACTS_DESTINATION": str(layout.state / "mlflow-artifacts"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # its job runners outlive the server
        "DO_NOT_TRACK": "1",
    }
    return Service(
        "mlflow",
        [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", port, "--workers", "1"],
        {**os.environ, **more, "PYTHONPATH": with_house()},
        lambda since: answers(f"{url}/health"),
    )


def worker_service(layout: Layout, api: str, limit: int, needs: str) -> Service:
    """A worker that runs what is due in the pool, `limit` flow runs at a time; it makes the pool if missing."""
    name = f"posttrain-{socket.gethostname()}"
    return Service(
        "worker",
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", name,
         "--limit", str(limit), "--install-policy", "never"],
        {"PREFECT_WORKER_QUERY_SECONDS": POLL, **_environment(layout, api)},
        _polls(api, name),
        needs,
        jobs=True,
    )  # fmt: skip


def watcher_service(layout: Layout, api: str, needs: str) -> Service:
    """What starts recipes when data or models that they watch change."""
    command = [sys.executable, "-m", import_path("flows.deployments.watcher")]
    return Service("watcher", command, _environment(layout, api), lambda since: True, needs)


def _environment(layout: Layout, api: str) -> dict[str, str]:
    """What all that talk to Prefect share; their console is a log file, so there they may say more."""
    return {
        **os.environ, **prefect_environment(layout), "PREFECT_API_URL": api, "PYTHONPATH": with_house(),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO", "PREFECT_INTERNAL_LOGGING_LEVEL": "ERROR",
        "POSTTRAIN_ROOT": str(layout.root), "NO_COLOR": "1",
    }  # fmt: skip


def _polls(api: str, name: str) -> Callable[[float], bool]:
    """Whether the worker has told the server that it lives, since it was started."""

    def polls(since: float) -> bool:
        asked = urllib.request.Request(
            f"{api}/work_pools/{POOL}/workers/filter", b"{}", {"Content-Type": "application/json", **_credentials()}
        )
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                workers = json.loads(answer.read())
        except (OSError, ValueError):
            return False
        beats = [w.get("last_heartbeat_time") for w in workers if w["name"] == name]
        return any(beat and datetime.fromisoformat(beat).timestamp() >= since for beat in beats)

    return polls


def _credentials() -> dict[str, str]:
    """The header that a server with a password or key wants, by Prefect's own variables."""
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    if pair := os.environ.get("PREFECT_API_AUTH_STRING"):
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {}
