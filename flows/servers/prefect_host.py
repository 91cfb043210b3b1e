"""The process that keeps a checkout's Prefect server alive while any run uses it."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from flows.processes.process_tree import die_with_parent
from flows.servers.log_rotation import rotate_log
from schemas.atomic_write import write_text_atomically

LOOK = 0.2
"""Seconds between checks for processes that use the server."""
STOP_TIMEOUT = 5.0
"""Seconds in which the server must end after SIGTERM."""


def run_host(folder: Path, port: int, command: list[str]) -> None:
    """Run the server until no process holds `folder/users` or it fails to answer; then remove `server.json`."""
    with (folder / "server.log").open("ab") as log, (folder / "users").open("ab") as users:
        server, answered, deaths = _start(command, folder, log), False, 0
        while _is_used(users.fileno()):
            time.sleep(LOOK)
            rotate_log(folder / "server.log")
            answered = answered or _is_listening(port)
            if server.poll() is not None:
                if not answered:
                    break
                _end(server)
                time.sleep(min(LOOK * 2**deaths, STOP_TIMEOUT))
                server, deaths = _start(command, folder, log), deaths + 1
                write_server(folder, server.pid)
        (folder / "server.json").unlink(missing_ok=True)
        _end(server)


def write_server(home: Path, pid: int, url: str = "") -> None:
    """Write where this checkout's server is (a new `pid`: it was restarted); the caller holds `home/host.lock`."""
    url = url or json.loads((home / "server.json").read_text())["url"]
    write_text_atomically(home / "server.json", json.dumps({"url": url, "pid": pid}))


def _start(command: list[str], folder: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=folder,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _is_used(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    run_host(Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4:])
