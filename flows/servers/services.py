"""The services of `posttrain up`: Prefect's server, MLflow's, a worker for deployments, the watcher of changes."""

import base64
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from datetime import datetime

from flows.processes.process_env import make_python_path
from flows.servers.prefect_server import (
    HOST,
    PREFECT_MAIN,
    is_answering,
    make_prefect_environment,
    make_server_environment,
    make_server_words,
)
from flows.servers.supervisor import Service
from lineage.layout import Layout
from schemas.package import import_path

POOL = "posttrain"
"""The work pool of all deployments; its type is `process`: a flow run is a process of this machine."""
NOTIFY_VARIABLE = "POSTTRAIN_UP_NOTIFY"
"""Environment variable that tells the watcher which block of Prefect sends messages."""
POLL = "2"
"""Seconds between polls of the worker for due runs."""


def make_prefect_service(layout: Layout, api: str) -> Service:
    """Return the service of Prefect's server, which answers at `api`."""
    port = api.removesuffix("/api").rpartition(":")[2]
    return Service(
        "prefect",
        [sys.executable, "-m", import_path(PREFECT_MAIN), *make_server_words(port)],
        _make_environment(layout, api) | make_server_environment(layout),
        lambda since: is_answering(f"{api}/health"),
    )


def make_mlflow_service(layout: Layout, url: str) -> Service:
    """Return the service of MLflow's server; its store is no command-line argument, as it may hold a password."""
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
        [
            sys.executable,
            "-m",
            import_path("flows.servers.mlflow_main"),
            "server",
            "--host",
            HOST,
            "--port",
            port,
            "--workers",
            "1",
        ],
        {**os.environ, **more, "PYTHONPATH": make_python_path()},
        lambda since: is_answering(f"{url}/health"),
    )


def make_worker_service(layout: Layout, api: str, limit: int, needs: str) -> Service:
    """Return a worker that executes due flow runs of the pool, `limit` at a time; it creates a missing pool."""
    name = f"posttrain-{socket.gethostname()}"
    return Service(
        "worker",
        [
            sys.executable,
            "-m",
            import_path("flows.servers.worker_main"),
            "worker",
            "start",
            "--pool",
            POOL,
            "--type",
            "process",
            "--name",
            name,
            "--limit",
            str(limit),
            "--install-policy",
            "never",
        ],
        {"PREFECT_WORKER_QUERY_SECONDS": POLL, **_make_environment(layout, api)},
        _make_poll_check(api, name),
        needs,
        jobs=True,
    )


def make_watcher_service(layout: Layout, api: str, needs: str, notify: str | None) -> Service:
    """Return the watcher that starts recipes when data or models that they watch change, and sets up automations."""
    command = [sys.executable, "-m", import_path("flows.deployments.watcher")]
    environment = _make_environment(layout, api) | ({NOTIFY_VARIABLE: notify} if notify else {})
    return Service("watcher", command, environment, lambda since: True, needs)


def _make_environment(layout: Layout, api: str) -> dict[str, str]:
    """Return the environment of all clients of Prefect; their console is a log file, so they may log more."""
    return {
        **os.environ,
        **make_prefect_environment(layout),
        "PREFECT_API_URL": api,
        "PYTHONPATH": make_python_path(),
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",
        "PREFECT_INTERNAL_LOGGING_LEVEL": "ERROR",
        "POSTTRAIN_ROOT": str(layout.root),
        "NO_COLOR": "1",
    }


def _make_poll_check(api: str, name: str) -> Callable[[float], bool]:
    """Return a function that returns whether the worker has reported to the server since it was started."""

    def polls(since: float) -> bool:
        request = urllib.request.Request(
            f"{api}/work_pools/{POOL}/workers/filter",
            b"{}",
            {"Content-Type": "application/json", **_read_credentials()},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                workers = json.loads(answer.read())
        except (OSError, ValueError):
            return False
        beats = [w.get("last_heartbeat_time") for w in workers if w["name"] == name]
        return any(beat and datetime.fromisoformat(beat).timestamp() >= since for beat in beats)

    return polls


def _read_credentials() -> dict[str, str]:
    """Return the header for a server with a password or key, from Prefect's own variables."""
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    if pair := os.environ.get("PREFECT_API_AUTH_STRING"):
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {}
