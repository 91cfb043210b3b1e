"""Prefect's server for a run: one that answers is used, otherwise one is started and ended with the run.

Everything that Prefect writes lies in `.posttrain/prefect`; it binds to 127.0.0.1 and tells nobody anything.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

from lineage.layout import Layout
from schemas.errors import PlanError

HOST = "127.0.0.1"
START_LIMIT = 120.0
"""Seconds until a server must answer; 8 to 20 are usual."""


def prefect_environment(layout: Layout) -> dict[str, str]:
    """Settings that keep Prefect in the state folder and quiet; those already set are left alone."""
    home = layout.state / "prefect"
    wanted = {
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_LOGGING_SETTINGS_PATH": str(home / "logging.yml"),
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "INFO",  # what steps print goes to the server ...
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # ... and not to the terminal, where a reporter tells
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "DO_NOT_TRACK": "1",
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextlib.contextmanager
def prefect_server(layout: Layout) -> Iterator[Callable[[], None]]:
    """Set this process's PREFECT_API_URL; yields a function that waits until its server, booting meanwhile, answers."""
    os.environ.update(prefect_environment(layout))
    found = os.environ.get("PREFECT_API_URL") or running_server(layout)
    process = None
    if found is None:
        process, found = start_server(layout)
    os.environ["PREFECT_API_URL"] = found
    try:
        yield lambda: _wait_until_healthy(process, found, layout)
    finally:
        if process is not None:
            stop_server(process, layout)


def running_server(layout: Layout) -> str | None:
    """Address of a server that was started for this checkout and still answers."""
    try:
        url = json.loads((layout.state / "prefect" / "server.json").read_text())["url"]
    except (OSError, ValueError, KeyError):
        return None
    return url if is_healthy(url) else None


def is_healthy(url: str) -> bool:
    """Whether a Prefect API answers there."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def start_server(layout: Layout, port: int | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server that dies with this process; it does not answer yet."""
    home = layout.state / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    port = port or _free_port()
    url = f"http://{HOST}:{port}/api"
    words = ["-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    environment = {**os.environ, **prefect_environment(layout), "PREFECT_API_URL": url}
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *words], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home,
            start_new_session=True, preexec_fn=_die_with_parent,
        )  # fmt: skip
    return process, url


def stop_server(process: subprocess.Popen[bytes], layout: Layout) -> None:
    """End a server with everything it started."""
    (layout.state / "prefect" / "server.json").unlink(missing_ok=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return


def _wait_until_healthy(process: subprocess.Popen[bytes] | None, url: str, layout: Layout) -> None:
    limit = time.monotonic() + START_LIMIT
    log = layout.state / "prefect" / "server.log"
    while not is_healthy(url):
        if process is None or process.poll() is not None or time.monotonic() > limit:
            raise PlanError(f"Prefect's server at {url} does not answer; see {log}, or run with --executor inprocess")
        time.sleep(0.2)
    if process is not None:
        record = layout.state / "prefect" / "server.json"
        record.write_text(json.dumps({"url": url, "pid": process.pid}))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
