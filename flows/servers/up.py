"""`posttrain up`: keep the servers, the worker and the watcher of a checkout running until Ctrl-C."""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from flows.processes.process_tree import WaitForStop, run_in_process_tree
from flows.servers.orphans import end_previous, guard_children
from flows.servers.prefect_host import write_server
from flows.servers.prefect_server import HOST, find_free_port, verify_answering
from flows.servers.services import (
    POOL,
    make_mlflow_service,
    make_prefect_service,
    make_watcher_service,
    make_worker_service,
)
from flows.servers.supervisor import Say, Service, Supervisor
from lineage.database import SQLITE, hide_password, prepare_database, read_chosen_database, remember_database
from lineage.layout import Layout
from lineage.registry.client import is_registry_empty, open_client
from schemas.atomic_write import write_text_atomically
from schemas.errors import PlanError

FILE, FOLDER, LOCK = "up.json", "up", "lock"
BLOCK = re.compile(r"[a-z0-9-]+/[A-Za-z0-9_.-]+")
"""A block of Prefect: its kind and its name."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of the servers, and which of them existed before and are not managed."""

    prefect: str
    """Address of Prefect's API."""
    mlflow: str
    prefect_given: bool = False
    mlflow_given: bool = False


class UpRecord(TypedDict, total=False):
    """Addresses and processes of a running `up`, as its file has them."""

    prefect: str
    mlflow: str
    pids: dict[str, int]
    """Process of each service, and of `up` itself."""


def run_services(
    layout: Layout,
    console: Console,
    *,
    prefect_port: int,
    mlflow_port: int,
    database: str | None,
    limit: int,
    notify: str | None = None,
) -> int:
    """Keep everything running until Ctrl-C or SIGTERM; return the exit code.

    Raise PlanError before anything starts if another `up` runs here, a port is taken, or a named server or database
    does not answer.
    """
    if notify is not None and not BLOCK.fullmatch(notify):
        raise PlanError(f"--notify {notify}: give a notification block of Prefect, such as slack-webhook/team")
    folder = layout.make_state() / FOLDER
    folder.mkdir(exist_ok=True)
    with _lock_checkout(layout, folder):
        if killed := end_previous(folder):
            console.print(
                f"ended {len(killed)} processes that a killed `posttrain up` had left: {'; '.join(killed)}",
                highlight=False,
                markup=False,
            )
        addresses = _choose_addresses(prefect_port, mlflow_port)
        _choose_database(layout, database)
        return run_in_process_tree(lambda stopped: _run_guarded(layout, console, addresses, limit, notify, stopped))


def read_addresses(layout: Layout) -> UpRecord:
    """Return the addresses of the `up` that runs in this checkout; empty if none does."""
    folder = layout.state / FOLDER
    with contextlib.suppress(OSError, ValueError), (folder / LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return json.loads((layout.state / FILE).read_text())
    return {}


def _run_guarded(
    layout: Layout, console: Console, addresses: Addresses, limit: int, notify: str | None, stopped: WaitForStop
) -> int:
    with guard_children(layout.state / FOLDER):
        services = _make_services(layout, addresses, limit, notify)  # with the identity that the guard gives them
        return _run_until_stopped(layout, console, addresses, limit, services, stopped)


def _run_until_stopped(
    layout: Layout,
    console: Console,
    addresses: Addresses,
    limit: int,
    services: list[Service],
    stopped: WaitForStop,
) -> int:
    def say(name: str, text: str) -> None:
        console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True, highlight=False)

    def changed(pids: dict[str, int]) -> None:
        content = UpRecord(prefect=addresses.prefect, mlflow=addresses.mlflow, pids={"up": os.getppid(), **pids})
        write_text_atomically(layout.state / FILE, json.dumps(content, indent=1) + "\n")
        if "prefect" in pids:  # other runs see that it is another process now
            write_server(layout.state / "prefect", pids["prefect"], addresses.prefect)

    supervisor = Supervisor(services, layout.state / FOLDER, say, changed)
    changed({})
    try:
        with _replace_server(layout, addresses.prefect, say, stopped) as hosted:
            if hosted:
                console.print("starting Prefect, MLflow and the worker ...", highlight=False)
                supervisor.run(stopped, lambda: _print_addresses(console, layout, addresses, limit))
                console.print("stopped", highlight=False)
    finally:
        (layout.state / FILE).unlink(missing_ok=True)
    return 0


def _make_services(layout: Layout, addresses: Addresses, limit: int, notify: str | None) -> list[Service]:
    api, needs = addresses.prefect, "" if addresses.prefect_given else "prefect"
    if is_registry_empty(layout):
        open_client(layout)  # creates the database whole; a server that is killed while it does would leave a part
    services = [
        None if addresses.prefect_given else make_prefect_service(layout, api),
        None if addresses.mlflow_given else make_mlflow_service(layout, addresses.mlflow),
        make_worker_service(layout, api, limit, needs),
        make_watcher_service(layout, api, needs, notify),
    ]
    return [service for service in services if service is not None]


def _print_addresses(console: Console, layout: Layout, addresses: Addresses, limit: int) -> None:
    database = read_chosen_database(layout.state)
    for name, text in (
        (
            "Prefect",
            addresses.prefect.removesuffix("/api") + (" (not managed here)" if addresses.prefect_given else ""),
        ),
        ("MLflow", addresses.mlflow + (" (not managed here)" if addresses.mlflow_given else "")),
        ("worker", f"pool {POOL}, at most {limit} flow runs at a time"),
        ("records", hide_password(database) if database else f"SQLite in {_shorten_path(layout.state)}"),
        ("logs", _shorten_path(layout.state / FOLDER)),
    ):
        console.print(f"{name:<8} {text}", highlight=False, markup=False, soft_wrap=True)
    console.print("Ctrl-C stops everything", highlight=False)


def _shorten_path(path: Path) -> str:
    return os.path.relpath(path)


@contextlib.contextmanager
def _lock_checkout(layout: Layout, folder: Path) -> Iterator[None]:
    """Hold the lock of the checkout's only `up`; the kernel releases it when its processes are gone."""
    with (folder / LOCK).open("ab") as lock:
        for _ in range(3):  # another process may be testing the lock
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
        else:
            there = read_addresses(layout)
            where = ", ".join(f"{name} at {url}" for name in ("prefect", "mlflow") if (url := there.get(name)))
            pid = there.get("pids", {}).get("up", "?")
            raise PlanError(
                f"`posttrain up` runs in this checkout already: {where or 'it is starting'}\n"
                f"    end it with Ctrl-C there, or: kill {pid}"
            )
        yield


@contextlib.contextmanager
def _replace_server(layout: Layout, api: str, say: Say, stopped: WaitForStop) -> Iterator[bool]:
    """Register as the server that runs would start for themselves; return False if stopped before.

    Two servers on one SQLite file would conflict, so one that a run has started must end first.
    """
    home = layout.state / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "host.lock").open("ab") as lock:
        has_waited = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_waited:
                    say("prefect", "waits for a run that started a server of its own to end")
                has_waited = True
                if stopped(0.5):
                    yield False
                    return
        write_server(home, 0, api)
        try:
            yield True
        finally:
            (home / "server.json").unlink(missing_ok=True)


def _choose_addresses(prefect_port: int, mlflow_port: int) -> Addresses:
    """Return the addresses to use; PREFECT_API_URL and MLFLOW_TRACKING_URI name existing servers."""
    prefect, mlflow = os.environ.get("PREFECT_API_URL"), os.environ.get("MLFLOW_TRACKING_URI", "")
    if prefect:
        verify_answering("Prefect's server", prefect, "PREFECT_API_URL")
    server = mlflow.rstrip("/") if mlflow.startswith(("http://", "https://")) else ""
    if server:
        verify_answering("MLflow's server", server, "MLFLOW_TRACKING_URI")
    api = (
        prefect.rstrip("/")
        if prefect
        else f"http://{HOST}:{_choose_port('Prefect', '--prefect-port', prefect_port)}/api"
    )
    ui = server or f"http://{HOST}:{_choose_port('MLflow', '--mlflow-port', mlflow_port)}"
    return Addresses(api, ui, bool(prefect), bool(server))


def _choose_port(who: str, option: str, port: int) -> int:
    if port == 0:
        return find_free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            why = (
                "is taken by another program" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
            )
            advice = f"give another with {option} (0: any free one)"
            raise PlanError(f"port {port} of {HOST}, where {who} should answer, {why}; {advice}") from error
    return port


def _choose_database(layout: Layout, database: str | None) -> None:
    if database is not None:
        if database != SQLITE:
            _refuse_password(database)
            prepare_database(database)
        remember_database(layout.state, database)
    elif chosen := read_chosen_database(layout.state):
        prepare_database(chosen)


def _refuse_password(database: str) -> None:
    if hide_password(database) != database:
        raise PlanError(
            f"--database {hide_password(database)}: all users of this machine can see a password on the command line\n"
            "    put it into PGPASSWORD or ~/.pgpass, or the whole address into POSTTRAIN_DATABASE"
        )
