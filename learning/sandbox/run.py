"""Run a program that a model wrote, behind guards of the kernel; what is enforced by what: docs/sandbox.md."""

import fcntl
import math
import os
import platform
import selectors
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from learning.sandbox import child
from learning.sandbox.filters import compiled, machine
from schemas.errors import StepError

MOST_OUTPUT = 64 * 1024
"""Bytes of each of stdout and stderr that are kept; a program that writes more is ended."""
MOST_BYTES, MOST_FILES, FILE_BYTES = 64 * 2**20, 256, 16 * 2**20
"""Of all files of a program, and of one of them."""
OPEN_FILES = 64
UNTIL_READY = 60.0
"""Seconds that the guards may take to stand; they take milliseconds unless the machine is loaded."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LOOK = 0.1
"""Seconds between two looks at what a program has written."""


@dataclass(frozen=True)
class Ran:
    """What came of a program."""

    stdout: str
    stderr: str
    code: int
    """0: it ended well; 1: an exception; negative: the signal that ended it."""
    timed_out: bool
    seconds: float
    """On the wall, from when the guards stood."""
    told: str = ""
    """Why the sandbox ended it, in words; empty: it ended by itself."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Those of the names asked for that it left in its folder."""


def run(
    code: str,
    *,
    stdin: str = "",
    files: Mapping[str, str | bytes] = {},
    seconds: float = 5,
    memory_mb: int = 256,
    keep: Collection[str] = (),
) -> Ran:
    """Run Python text in a process of its own that has the standard library, `files`, and nothing else.

    `files` lie in its working folder, which is gone afterwards but for the files to `keep`. `seconds` are on the wall.
    Raises StepError where this machine lacks a guard (`available`), and for a file's name that leads out of the folder.
    """
    if reason := available():
        raise StepError(reason)
    return guarded(code, stdin=stdin, files=files, seconds=seconds, memory_mb=memory_mb, keep=keep)


@cache
def available() -> str | None:
    """Why programs of a model cannot run on this machine, found by trying what must fail; None: they can."""
    if platform.system() != "Linux" or machine() is None:
        return (
            f"code that a model wrote runs only on Linux on x86_64 or aarch64, not on {platform.system()} on "
            f"{platform.machine()}: its guards are those of that kernel. Run this step on such a machine"
        )
    try:
        ran = guarded(PROBE, stdin=child.__file__)
    except StepError as missing:
        return str(missing)
    if (ran.stdout, ran.code) != (PROBE_SAYS, 0):
        return f"the guards of the sandbox do not hold on this machine: {(ran.stdout + ran.stderr)[-400:]!r}"
    return None


PROBE = """
import _socket, os, resource
tries = {
    "read": lambda: open(input()),
    "write": lambda: open("../outside", "w"),
    "socket": lambda: _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM),
    "fork": os.fork,
    "signal": lambda: os.kill(os.getppid(), 0),
    "limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
}
for name, attempt in tries.items():
    try:
        attempt()
    except (OSError, ValueError):
        print(name)
"""
PROBE_SAYS = "read\nwrite\nsocket\nfork\nsignal\nlimit\n"


def guarded(
    code: str,
    *,
    stdin: str = "",
    files: Mapping[str, str | bytes] = {},
    seconds: float = 5,
    memory_mb: int = 256,
    keep: Collection[str] = (),
) -> Ran:
    """`run` without the test whether the guards hold; they must all stand. Raises StepError where one cannot."""
    with working_folder() as folder:
        fill(folder, {**files, "program.py": code})
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode(errors="replace"))
            given.seek(0)
            process, status = begin(folder, given.fileno(), seconds, memory_mb)
        try:
            wait_until_ready(process, status)
            ran = watch(process, folder, seconds)
            left = {name: (folder / name).read_bytes() for name in keep if (folder / name).is_file()}
            return replace(ran, files=left)
        finally:
            os.close(status)
            end(process)


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder that is gone afterwards; beside it a lock tells the next run's sweep that somebody still uses it."""
    with tempfile.TemporaryDirectory(prefix="posttrain-sandbox-") as name, (Path(name) / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(name).resolve() / "work"
        folder.mkdir()
        yield folder


def fill(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below the folder. Raises StepError for a name that leads out of it."""
    for name, content in files.items():
        path = folder / name
        if not name or ".." in path.parts or not path.is_relative_to(folder):
            raise StepError(f"a program's file must lie in its folder, not at {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)


def readable() -> str:
    """Folders that a program may read: Python's standard library and the system's shared ones."""
    extensions = sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})
    return ":".join(dict.fromkeys((sysconfig.get_path("stdlib"), extensions, *LIBRARIES)))


def begin(folder: Path, given: int, seconds: float, memory_mb: int) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the descriptor on which it says that its guards stand."""
    status, tell = os.pipe()
    bounds = [memory_mb * 2**20, math.ceil(seconds) + 1, FILE_BYTES, OPEN_FILES]
    arguments = [tell, os.getpid(), *bounds, compiled(machine() or "").hex(), readable()]
    # The environment is empty but for the seed of hashes, which would differ from run to run; hence not -I, which
    # would ignore that as well: -P, -s and an environment of our own are the rest of what it does.
    command = [os.path.realpath(sys.executable), "-P", "-s", "-S", "-B", "-u", "-X", "utf8", child.__file__]
    try:
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0"},
            cwd=folder,
            start_new_session=True,
            pass_fds=(tell,),
        )
    except BaseException:
        os.close(status)
        raise
    finally:
        os.close(tell)
    return process, status


def wait_until_ready(process: subprocess.Popen[bytes], status: int) -> None:
    """Raises StepError unless every guard stands."""
    with selectors.DefaultSelector() as selector:
        selector.register(status, selectors.EVENT_READ)
        said = os.read(status, 1000).decode() if selector.select(UNTIL_READY) else "no answer"
    if said != "ready":
        process.kill()
        words = said or (process.stderr.read() if process.stderr else b"").decode(errors="replace")[-400:]
        raise StepError(
            f"the sandbox cannot put its guards up here, so code that a model wrote does not run: {words}. "
            "`posttrain doctor` tells what this machine enforces; docs/sandbox.md what is needed"
        )


def watch(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> Ran:
    """Gather the output until the process ends or oversteps."""
    begun, told = time.monotonic(), ""
    kept = {"out": bytearray(), "err": bytearray()}
    over = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector:
        for handle, name in ((over, "over"), (process.stdout, "out"), (process.stderr, "err")):
            selector.register(handle, selectors.EVENT_READ, name)
        ended = False
        while selector.get_map():
            left = math.inf if ended else begun + seconds - time.monotonic()
            for ready, _ in selector.select(max(0.0, min(left, LOOK))):
                chunk = os.read(ready.fd, 65536) if ready.data in kept else b""
                if chunk:
                    kept[ready.data] += chunk
                else:
                    selector.unregister(ready.fileobj)
                    ended |= ready.data == "over"
            if not told and (told := overstepped(kept, folder, math.inf if ended else left, seconds)):
                process.kill()
    os.close(over)
    texts = [bytes(part[:MOST_OUTPUT]).decode(errors="replace") for part in kept.values()]
    return Ran(*texts, process.wait(), told.startswith("time"), time.monotonic() - begun, told)


def overstepped(kept: dict[str, bytearray], folder: Path, left: float, seconds: float) -> str:
    """Which bound of those that the sandbox itself watches is passed, in words."""
    if max(map(len, kept.values())) > MOST_OUTPUT:
        return f"more than {MOST_OUTPUT} bytes of output"
    if left <= 0:
        return f"time: {seconds:g} seconds are over"
    sizes = [path.stat(follow_symlinks=False).st_blocks * 512 for path in folder.rglob("*") if path.is_file()]
    if len(sizes) > MOST_FILES or sum(sizes) > MOST_BYTES:
        return f"more than {MOST_FILES} files or {MOST_BYTES // 2**20} MiB of them"
    return ""


def end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of the process is left; it cannot have children."""
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
