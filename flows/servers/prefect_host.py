"""Keeps Prefect's server of a checkout alive for as long as any run uses it, and no longer.

Runs hold a shared lock on `users`; the kernel takes it back however they end. The host holds `host.lock`, handed down
by the run that started it. A server that has answered and dies is started again at the same address.
Usage: python -m flows.servers.prefect_host FOLDER LOCK_DESCRIPTOR PORT COMMAND...
"""

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
from schemas.atomic_write import write_text_atomically

LOOK = 0.2
"""Seconds between looks for users."""
PATIENCE = 5.0
"""Seconds that the server has to end by itself."""


def run_host(folder: Path, port: int, command: list[str]) -> None:
    """Run the server until nobody holds `folder/users`, or it ends before it answered; then remove `server.json`."""
    with (folder / "server.log").open("ab") as log, (folder / "users").open("ab") as users:
        server, answered, deaths = _start(command, folder, log), False, 0
        while _is_used(users.fileno()):
            time.sleep(LOOK)
            answered = answered or _is_listening(port)
            if server.poll() is not None:
                if not answered:
                    break
                _end(server)
                time.sleep(min(LOOK * 2**deaths, PATIENCE))
                server, deaths = _start(command, folder, log), deaths + 1
                write_server(folder, server.pid)
        (folder / "server.json").unlink(missing_ok=True)
        _end(server)


def write_server(home: Path, pid: int, url: str = "") -> None:
    """Let everything of this checkout find a server (another `pid`: it died); the caller holds `home/host.lock`."""
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
            server.wait(PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    run_host(Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4:])
