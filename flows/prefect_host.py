"""Keeps Prefect's server of a checkout alive for as long as any run uses it, and no longer.

Runs hold a shared lock on `users`; the kernel takes it back however they end. The host holds `host.lock`, handed down
by the run that started it. Usage: python -m flows.prefect_host FOLDER LOCK_DESCRIPTOR COMMAND...
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK = 0.2
"""Seconds between looks for users."""
PATIENCE = 5.0
"""Seconds that the server has to end by itself."""


def host(folder: Path, command: list[str]) -> None:
    """Run the server until it ends or nobody holds `folder/users`; then remove `server.json` and end the server."""
    with (folder / "server.log").open("ab") as log, (folder / "users").open("ab") as users:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        while server.poll() is None and _used(users.fileno()):
            time.sleep(LOOK)
        (folder / "server.json").unlink(missing_ok=True)
        _end(server)


def _used(users: int) -> bool:
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


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    host(Path(sys.argv[1]), sys.argv[3:])
