"""A terminal that is closed while a run goes on stops the run, as Ctrl-C does; `nohup` keeps it going."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

from tests.flows.checkout import REPOSITORY
from tests.waiting import wait_for

PROGRAM = """
import sys, threading
from pathlib import Path
from flows.processes.stop_signals import enforce_stop, set_on_signals

stop, folder = threading.Event(), Path(sys.argv[1])
with enforce_stop(60), set_on_signals(stop):
    print("begun", flush=True)
    (folder / "begun").touch()
    stopped = stop.wait(float(sys.argv[2]))
    print("the end", flush=True)
    print("the end", file=sys.stderr, flush=True)
    (folder / "end").write_text("stopped" if stopped else "went on")
"""


@pytest.mark.parametrize(
    ("ignored", "seconds", "end"), [(False, 60, "stopped"), (True, 1, "went on")], ids=["plain", "nohup"]
)
def test_a_closed_terminal(tmp_path, ignored, seconds, end):
    ours, theirs = pty.openpty()

    def own_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    output = theirs if not ignored else os.open(tmp_path / "nohup.out", os.O_WRONLY | os.O_CREAT)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path, str(seconds)],
        cwd=REPOSITORY,
        stdin=theirs,
        stdout=output,
        stderr=output,
        preexec_fn=own_terminal,
    )
    for handle in {theirs, output}:
        os.close(handle)
    wait_for(lambda: (tmp_path / "begun").exists() or process.poll() is not None, 60)
    os.close(ours)
    assert process.wait(90) == 0
    assert (tmp_path / "end").read_text() == end
