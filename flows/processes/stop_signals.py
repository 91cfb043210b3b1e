"""Stop a run on Ctrl-C, on SIGTERM and when its terminal closes, also where Python's handlers cannot run.

A handler of Python runs between two of its instructions. While one call of C code holds the interpreter, such as a
power of huge numbers, no handler and no thread runs. The interpreter's C code still writes the number of each signal
to a file descriptor; a process reads its other end and measures the time.

This file is also the program of that process: it imports nothing but the standard library.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

GRACE = 15.0
"""Seconds in which a run ends by itself: a step is given five of them (`flows.steps.in_process`)."""
TWICE = 0.5
"""Seconds after which another signal is a second request; one request may reach a process in two ways."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP is that of a terminal which was closed; `nohup` ignores it."""
ACTION_BYTES = 512
"""More than the size of C's `struct sigaction`: 152 bytes with glibc."""
MESSAGE = "the run did not stop in time, so it was killed; continue with: posttrain resume\n"


@contextlib.contextmanager
def enforce_stop(grace: float = GRACE) -> Iterator[None]:
    """Inside, signals that stop a run end this process after the grace period, and at once when repeated.

    The process ends as if killed. Python's own handlers must be installed; outside of the main thread this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(grace)]
    watcher = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(theirs)
    before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(ours)
        watcher.kill()
        watcher.wait()


def enforce_from_outside(process: int, grace: float) -> None:
    """Read signal numbers from standard input and kill the process when its time is up; return when it has ended."""
    first: float | None = None
    while True:
        left = None if first is None else max(0.0, first + grace - time.monotonic())
        again = False
        if select.select([0], [], [], left)[0]:
            numbers = os.read(0, 4096)
            if not numbers:
                return
            if any(number in STOP_SIGNALS for number in numbers):
                now = time.monotonic()
                first = now if first is None else first
                again = now - first > TWICE
        if first is not None and (again or time.monotonic() >= first + grace):
            if os.getppid() == process:
                sys.stderr.write(MESSAGE)
                os.kill(process, signal.SIGKILL)
            return


@contextlib.contextmanager
def set_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on signals that stop a run; outside of the main thread this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    with handle_signals(STOP_SIGNALS, stop.set):
        yield


@contextlib.contextmanager
def keep_sigterm_action() -> Iterator[None]:
    """Restore at the end how this process reacts to SIGTERM; works in any thread, unlike Python's own `signal`.

    Ray's C++ code installs a handler that prints a stack, passes the signal on, and aborts the process 3 seconds later.
    """
    import ctypes  # milliseconds, which the program of `enforce_stop` need not take

    library, before = ctypes.CDLL(None), ctypes.create_string_buffer(ACTION_BYTES)
    library.sigaction(int(signal.SIGTERM), None, before)
    try:
        yield
    finally:
        library.sigaction(int(signal.SIGTERM), before, None)


@contextlib.contextmanager
def handle_signals(numbers: Sequence[signal.Signals], handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` on these signals inside, and restore the handlers that were set before.

    SIGHUP stays ignored where it is. At SIGHUP, what is written to a terminal goes nowhere from then on.
    """
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _discard_output(terminals)
        handle()

    wanted = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _discard_output(streams: Sequence[int]) -> None:
    """Send what is written to these descriptors nowhere: writing to a closed terminal raises OSError."""
    if not streams:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


if __name__ == "__main__":
    enforce_from_outside(int(sys.argv[1]), float(sys.argv[2]))
