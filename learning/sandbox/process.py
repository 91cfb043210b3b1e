"""The process of one program: start with all guards, and end."""

import math
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from learning.sandbox import child
from learning.sandbox.filters import compiled, machine, watched
from learning.sandbox.storage import FILE_BYTES, Storage
from schemas.errors import StepError

OPEN_FILES = 64
UNTIL_READY = 60.0
"""Timeout of installing the guards, in seconds; it takes milliseconds unless the machine is loaded."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


@dataclass(frozen=True)
class Started:
    """A program whose guards are installed."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    """The other end of its descriptor 3, if it has one."""
    storage: Storage


@contextmanager
def started(folder: Path, stdin: Path, seconds: float, memory_mb: int, *, channel: bool) -> Iterator[Started]:
    """Yield the running process of `program.py` in a folder, then end it; raise StepError if a guard is missing."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with its, stdin.open("rb") as input_file:
            bounds = [memory_mb * 2**20, math.ceil(seconds) + 1, FILE_BYTES, OPEN_FILES]
            process = begin([its.fileno(), os.getpid(), *bounds], its.fileno(), input_file.fileno(), folder, channel)
        listener = -1
        try:
            listener = wait_until_ready(process, ours)
            yield Started(process, ours, Storage(listener, process.pid, folder))
        finally:
            end(process)
            if listener >= 0:
                os.close(listener)


def begin(arguments: list[int], its: int, stdin: int, folder: Path, channel: bool) -> subprocess.Popen[bytes]:
    """Start the process that installs its guards.

    Its environment has only the hash seed, for reproducible runs. The option -I would ignore that seed; -P, -s and the
    otherwise empty environment have the other effects of -I.
    """
    command = [os.path.realpath(sys.executable), "-P", "-s", "-S", "-B", "-u", "-X", "utf8", child.__file__]
    name = machine() or ""
    filters = [compiled(name).hex(), readable(), watched(name).hex(), int(channel)]
    return subprocess.Popen(
        [*command, *map(str, [*arguments, *filters])],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONHASHSEED": "0"},
        cwd=folder,
        start_new_session=True,
        pass_fds=(its,),
    )


def readable() -> str:
    """Return the folders that a program may read: Python's standard library and the system's shared libraries."""
    extensions = sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})
    return ":".join(dict.fromkeys((sysconfig.get_path("stdlib"), extensions, *LIBRARIES)))


def wait_until_ready(process: subprocess.Popen[bytes], ours: socket.socket) -> int:
    """Return the descriptor of its storage requests (`learning.sandbox.storage`); raise StepError without a guard."""
    ours.settimeout(UNTIL_READY)
    listeners: list[int] = []
    try:
        message, listeners, _, _ = socket.recv_fds(ours, 1000, 1, socket.MSG_CMSG_CLOEXEC)
        if listeners:
            message = ours.recv(1000)
    except TimeoutError:
        message = b"no answer"
    ours.setblocking(False)
    if message == b"ready" and listeners:
        return listeners[0]
    for listener in listeners:
        os.close(listener)
    process.kill()
    words = (message or (process.stderr.read() if process.stderr else b"")).decode(errors="replace")[-400:]
    raise StepError(
        f"the sandbox cannot put its guards up here, so code that a model wrote does not run: {words}. "
        "`posttrain doctor` tells what this machine enforces; docs/sandbox.md what is needed"
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, which cannot have children, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
