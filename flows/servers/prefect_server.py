"""Prefect's server for a run: shared with other runs, started if there is none, ended with the last."""

import contextlib
import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

from flows.processes.locks import lock_if_free
from flows.processes.process_env import make_python_path
from flows.servers.prefect_host import LOOK, STOP_TIMEOUT, write_server
from lineage.database import SCHEMAS, prefect_address, read_chosen_database
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.package import import_path

HOST = "127.0.0.1"
PREFECT_MAIN = "flows.servers.prefect_main"
"""Module of the server's program."""
START_LIMIT = 120.0
"""Seconds until a server must answer; 8 to 20 are usual."""
RESTARTED = (
    "Prefect's server died during this run: its UI may lack states and log lines of that time.\n"
    "    Nothing else is lost: artifacts, `posttrain logs` and the report have all of it"
)
NOTICE = 5 * LOOK
"""Seconds in which a host notices that its server is unused."""


def make_prefect_environment(layout: Layout) -> dict[str, str]:
    """Return settings that keep Prefect in the state folder and quiet; variables already set are kept."""
    home = layout.state / "prefect"
    settings = {
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_LOGGING_SETTINGS_PATH": str(home / "logging.yml"),
        "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_PROFILES_PATH": str(home / "profiles.toml"),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "INFO",  # the output of steps goes to the server ...
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # ... and not to the terminal, where a reporter prints
        "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",  # long messages about each event that a dead server missed
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        # If it were kept in memory, the slot of a run that died with the server would never be released.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "DO_NOT_TRACK": "1",
    }
    return {name: value for name, value in settings.items() if name not in os.environ}


def make_server_words(port: int | str) -> list[str]:
    """Return the arguments of the server's program."""
    return ["server", "start", "--host", HOST, "--port", str(port)]


def make_server_environment(layout: Layout) -> dict[str, str]:
    """Return the settings of a server's database, only for its own process: an address may hold a password."""
    database = read_chosen_database(layout.state)
    if not database or "PREFECT_API_DATABASE_CONNECTION_URL" in os.environ:
        return {}
    return {
        "PREFECT_API_DATABASE_CONNECTION_URL": prefect_address(database),
        "PREFECT_SERVER_DATABASE_SQLALCHEMY_CONNECT_ARGS_SEARCH_PATH": f"{SCHEMAS[0]}, public",
    }


@contextlib.contextmanager
def use_prefect_server(layout: Layout) -> Iterator[Callable[[threading.Event], bool]]:
    """Use a server inside; yield a function that waits until it answers.

    The function returns False if its event was set before that; else it sets PREFECT_API_URL of this process, so
    Prefect must not be imported before.
    """
    os.environ.update(make_prefect_environment(layout))
    if url := os.environ.get("PREFECT_API_URL"):
        verify_answering("Prefect's server", url, "PREFECT_API_URL")
        yield lambda stop: True
        return
    home = layout.make_state() / "prefect"
    home.mkdir(exist_ok=True)
    with (home / "users").open("ab") as users:
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a server that is ending
        process, before = start_server(layout), ""

        def ready(stop: threading.Event) -> bool:
            nonlocal before
            healthy = _wait_until_healthy(layout, stop)
            before = _read_process(home)
            return healthy

        try:
            yield ready
        finally:
            if before and _read_process(home) != before:
                print(RESTARTED, file=sys.stderr)
            os.environ.pop("PREFECT_API_URL", None)
            fcntl.flock(users, fcntl.LOCK_UN)
            _wait_until_ended(process, layout)


def find_server_url(layout: Layout) -> str | None:
    """Return the address of this checkout's server, also while it boots; None without one."""
    return _read_server(layout.state / "prefect").get("url")


class ServerRecord(TypedDict, total=False):
    """Where the server of a checkout is; empty without one."""

    url: str
    pid: int


def _read_server(home: Path) -> ServerRecord:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((home / "server.json").read_text())
    return {}


def _read_process(home: Path) -> str:
    """Return an identifier of the server's process, which differs after a restart."""
    return str(_read_server(home).get("pid", ""))


def is_healthy(url: str) -> bool:
    """Return whether a Prefect API answers there."""
    return is_answering(f"{url}/health")


def is_answering(url: str) -> bool:
    """Return whether a GET succeeds within two seconds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False


def start_server(layout: Layout) -> subprocess.Popen[bytes] | None:
    """Start a server unless one runs; it may not answer yet, and ends when no process uses it any more."""
    home = layout.state / "prefect"
    with (home / "host.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        port = find_free_port()
        url = f"http://{HOST}:{port}/api"
        write_server(home, 0, url)
        server = [sys.executable, "-m", import_path(PREFECT_MAIN)]
        host = [sys.executable, "-m", import_path("flows.servers.prefect_host")]
        return subprocess.Popen(
            [*host, str(home), str(lock.fileno()), str(port), *server, *make_server_words(port)],
            env={
                **os.environ,
                **make_prefect_environment(layout),
                **make_server_environment(layout),
                "PREFECT_API_URL": url,
                "PYTHONPATH": make_python_path(),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )


def verify_answering(what: str, url: str, variable: str) -> None:
    """Raise PlanError if the server that a variable names does not answer; `url` has a page `health`."""
    if not is_answering(f"{url}/health"):
        raise PlanError(f"{what} at {url} ({variable}) does not answer; start it or unset the variable")


def _wait_until_healthy(layout: Layout, stop: threading.Event) -> bool:
    limit, home = time.monotonic() + START_LIMIT, layout.state / "prefect"
    while (url := find_server_url(layout)) is None or not is_healthy(url):
        if time.monotonic() > limit or not _is_hosted(home):
            where = f"see {home / 'server.log'}, or run with --executor inprocess"
            raise PlanError(f"Prefect's server at {url} does not answer; {where}")
        if stop.wait(0.1):
            return False
    os.environ["PREFECT_API_URL"] = url
    return True


def _is_hosted(home: Path) -> bool:
    """Return whether a host is alive: it holds the lock that was passed to it."""
    with lock_if_free(home / "host.lock") as is_free:
        return not is_free


def _wait_until_ended(process: subprocess.Popen[bytes] | None, layout: Layout) -> None:
    """Wait until the host that was started here has ended the server, unless others use it."""
    if process is None:
        return
    limit = time.monotonic() + NOTICE
    while time.monotonic() < limit and find_server_url(layout) is not None:
        time.sleep(0.02)
    if find_server_url(layout) is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3 * STOP_TIMEOUT)


def find_free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
