"""Run work so that all its processes end with it, however it ends.

Two processes watch each other: the front, which the terminal knows, and the keeper, which does the work in a session
of its own. If the front dies the keeper's pipe closes and it stops; if the keeper dies the front, which adopts its
orphans, kills them.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FrameType

import psutil

from schemas.errors import PosttrainError

WaitForStop = Callable[[float], bool]
"""Waits at most that many seconds; whether the work should stop."""
SUBREAPER, DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_in_process_tree(work: Callable[[WaitForStop], int]) -> int:
    """Do the work in a keeper until it ends or Ctrl-C, SIGTERM or SIGHUP stops it; return its exit code."""
    _prctl(SUBREAPER, 1)
    ours, theirs = os.pipe()
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS
    }  # until the handlers below are set
    sys.stdout.flush()
    keeper = os.fork()
    if not keeper:
        os.close(theirs)
        os._exit(_run_keeper(work, ours))
    os.close(ours)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: os.kill(keeper, signal.SIGTERM))
    try:
        _, status = os.waitpid(keeper, 0)
    finally:
        kill_descendants()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(theirs)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 1


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent's thread ends; for `preexec_fn`."""
    _prctl(DEATH_SIGNAL, signal.SIGKILL)


def use_default_stop_signals() -> None:
    """Make the kernel end this process at SIGINT, SIGTERM and SIGHUP: Python's handlers wait for C code.

    The step's checkpoints stay, as when it is killed.
    """
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # Ray blocks SIGINT


@dataclass(frozen=True)
class ProcessGroup:
    """The process group of a step, on the machine where the step runs; killing it ends everything that joined."""

    host: str
    number: int

    @classmethod
    def of_this_process(cls) -> "ProcessGroup":
        """Return the group of this process."""
        return cls(socket.gethostname(), os.getpgid(0))

    def join(self) -> None:
        """Join the group where it is on this machine."""
        if self.host == socket.gethostname():
            with contextlib.suppress(PermissionError, ProcessLookupError):  # of another session, or just ended
                os.setpgid(0, self.number)


def kill_descendants(timeout: float = 10.0) -> None:
    """Kill every descendant of this process, including those that start meanwhile."""
    limit = time.monotonic() + timeout
    while (alive := _list_descendants()) and time.monotonic() < limit:
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=0.5)


def reap_children(awaited: Collection[int]) -> None:
    """Reap adopted children that have ended; `awaited` are those that other code waits for."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if child.pid not in awaited and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _list_descendants() -> list[psutil.Process]:
    descendants = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                descendants.append(process)
    return descendants


def _run_keeper(work: Callable[[WaitForStop], int], pipe: int) -> int:
    """Run the work as the keeper: in its own session, so that Ctrl-C reaches it through the front only."""
    must_stop = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal must_stop
        must_stop = True

    def stopped(seconds: float) -> bool:
        nonlocal must_stop
        if not must_stop and select.select([pipe], [], [], seconds)[0]:
            must_stop = True  # the pipe has no writer: the front is gone
        return must_stop

    os.setsid()
    _prctl(SUBREAPER, 1)
    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    code = 1
    try:
        code = work(stopped)
    except PosttrainError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        kill_descendants()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
    return code


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)
