"""Processes that outlive a killed `posttrain up`: found by their environment, and killed.

Every process below an `up` inherits a random identity, so a number that another program got meanwhile is never
killed. The kernel kills the services themselves with the `up` that started them; their own children, such as MLflow's
server process and flow runs, are left to a guard, or to the next `up` if the guard was killed too.

This file is also the program of the guard: it imports nothing but the standard library.
"""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "POSTTRAIN_UP"
"""Environment variable with the identity of the `up` that a process belongs to."""
FILE = "identity"
KILL_LIMIT = 10.0
"""Seconds in which killed processes must be gone; one in uninterruptible I/O may stay longer."""


def end_previous(folder: Path) -> list[str]:
    """Kill what an earlier `up` of this folder left; return the command lines.

    The caller holds the lock of the folder: no other `up` runs there.
    """
    file = folder / FILE
    return end_orphans(file.read_text()) if file.is_file() else []


@contextlib.contextmanager
def guard_children(folder: Path) -> Iterator[None]:
    """Inside, children of this process inherit a new identity; a guard kills them as soon as this process is gone."""
    identity = secrets.token_hex(16)
    (folder / FILE).write_text(identity)
    command = [sys.executable, "-I", "-S", __file__]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert guard.stdin is not None
    guard.stdin.write(f"{identity}\n".encode())
    guard.stdin.flush()
    os.environ[VARIABLE] = identity
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        guard.stdin.close()
        guard.wait(2 * KILL_LIMIT)


def end_orphans(identity: str) -> list[str]:
    """Kill this machine's processes that inherited the identity; return their command lines when they have ended."""
    killed: list[str] = []
    limit = time.monotonic() + KILL_LIMIT
    while identity and time.monotonic() < limit and (more := _kill_all(identity, limit)):
        killed += more  # until there are none: one of them may have started another meanwhile
    return killed


def _kill_all(identity: str, limit: float) -> list[str]:
    """Kill the living processes with the identity and wait until they have ended; return their command lines."""
    mark, commands = f"{VARIABLE}={identity}".encode(), []
    with contextlib.ExitStack() as opened:
        handles = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError), contextlib.ExitStack() as kept:  # it has ended, or is another user's
                handle = os.pidfd_open(int(folder.name))  # its number is not reused while this is open
                kept.callback(os.close, handle)
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    commands.append(command)
                    handles.append(handle)
                    opened.push(kept.pop_all())
        for handle in handles:
            select.select([handle], [], [], max(0.0, limit - time.monotonic()))  # readable when its ports are free
    return commands


if __name__ == "__main__":
    expected = sys.stdin.readline().strip()
    sys.stdin.read()  # until no process holds the other end
    end_orphans(expected)
