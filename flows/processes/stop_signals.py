"""A stop that does not wait for Python: a process beside this one ends it if it does not end when it is asked to.

A handler of Python runs between two instructions of Python. Where one call of C code holds the interpreter, a power of
huge numbers or a comparison of huge lists, no handler runs, nor any thread. What still happens is that C code of the
interpreter writes the number of each signal to a file descriptor; at its other end a process waits and counts the time.

This file is also that process's program: it imports nothing but the standard library.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

GRACE = 15.0
"""Seconds in which a run ends by itself: a step is given five of them (`flows.steps.in_process`)."""
TWICE = 0.5
"""Seconds after which another signal is a second request; one request may reach a process in two ways."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
MESSAGE = "the run did not stop when it was asked to, so its process was ended; go on with: posttrain resume\n"


@contextlib.contextmanager
def enforce_stop(grace: float = GRACE) -> Iterator[None]:
    """Inside, SIGINT and SIGTERM end this process after the grace, and at once when one comes again.

    The process ends as if it were killed. Their handlers must be those of Python; only the main thread has them.
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
    """Read numbers of signals from the standard input; end the process when it is time. Returns when it has ended."""
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
    """Ctrl-C and SIGTERM set `stop`; only the main thread can hear them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    enforce_from_outside(int(sys.argv[1]), float(sys.argv[2]))
