"""Run programs written by a model, restricted by the kernel; docs/sandbox.md lists the mechanisms."""

import fcntl
import platform
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from learning.sandbox import child
from learning.sandbox.escape_detection import Noticing
from learning.sandbox.filters import machine
from learning.sandbox.process import started
from learning.sandbox.watchdog import Answer, Ran, watch
from schemas.errors import StepError


def run(
    code: str,
    *,
    stdin: str = "",
    files: Mapping[str, str | bytes] = {},
    seconds: float = 5,
    memory_mb: int = 256,
    keep: Collection[str] = (),
    notice: Collection[str] = (),
    answer: Answer | None = None,
) -> Ran:
    """Run Python code in a separate process with access to the standard library and `files` only.

    `files` are in its working folder, which is deleted afterwards; the result holds the contents of the files named in
    `keep` and which of those in `notice` were opened. `seconds` limits wall time. With `answer`, the program's
    descriptor 3 is a socket: each message that it writes there is passed to `answer`, and a result other than None is
    sent back. Raise StepError if this machine lacks a guard (`available`) or a file name points outside the folder.
    """
    if reason := available():
        raise StepError(reason)
    options = {"stdin": stdin, "files": files, "seconds": seconds, "memory_mb": memory_mb}
    return guarded(code, **options, keep=keep, notice=notice, answer=answer)


@cache
def available() -> str | None:
    """Return why programs of a model cannot run on this machine, or None; tested by actions that must fail."""
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
    "device": lambda: os.open("/dev/null", 3),
    "store": lambda: open("own", "w").truncate(2**40),
}
for name, attempt in tries.items():
    try:
        attempt()
    except (OSError, ValueError):
        print(name)
"""
PROBE_SAYS = "read\nwrite\nsocket\nfork\nsignal\nlimit\ndevice\nstore\n"


def guarded(
    code: str,
    *,
    stdin: str = "",
    files: Mapping[str, str | bytes] = {},
    seconds: float = 5,
    memory_mb: int = 256,
    keep: Collection[str] = (),
    notice: Collection[str] = (),
    answer: Answer | None = None,
) -> Ran:
    """Do the work of `run` without its check that the guards hold; raise StepError if one cannot be installed."""
    with working_folder() as folder:
        fill(folder, {**files, "program.py": code})
        input_file = folder.parent / "stdin"
        input_file.write_bytes(stdin.encode(errors="replace"))
        with Noticing(folder / name for name in notice) as noticing:
            with started(folder, input_file, seconds, memory_mb, channel=answer is not None) as process:
                ran = watch(process, seconds, answer)
            opened = frozenset(path.name for path in noticing.opened())
        return replace(ran, files=dict(left(folder, keep)), opened=opened)


def left(folder: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the readable ones among the files that a program left under these names."""
    for name in names:
        with suppress(OSError, ValueError):
            yield name, (folder / name).read_bytes()


@contextmanager
def working_folder() -> Iterator[Path]:
    """Yield a folder that is deleted afterwards; a lock next to it marks it as in use for later cleanups."""
    with ExitStack() as stack:
        while (folder := locked_folder(stack)) is None:
            continue
        yield folder


def locked_folder(stack: ExitStack) -> Path | None:
    """Return a folder with its lock; None if another run's cleanup removed it before it was locked."""
    name = stack.enter_context(tempfile.TemporaryDirectory(prefix="posttrain-sandbox-"))
    try:
        fcntl.flock(stack.enter_context((Path(name) / "lock").open("wb")), fcntl.LOCK_EX)
        folder = Path(name).resolve() / "work"
        folder.mkdir()
    except FileNotFoundError:
        return None
    return folder


def fill(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below the folder; raise StepError if a name points outside it."""
    for name, content in files.items():
        path = folder / name
        if not name or ".." in path.parts or not path.is_relative_to(folder):
            raise StepError(f"a program's file must lie in its folder, not at {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
