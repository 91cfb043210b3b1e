"""SIGTERM to a process whose Ray was started by another thread, as a flow run's is."""

import subprocess
import sys

PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
from flows.steps.ray_workers import RayWorkers
from lineage.layout import Layout

received = threading.Event()
signal.signal(signal.SIGTERM, lambda number, frame: received.set())
started = []
thread = threading.Thread(target=lambda: started.append(RayWorkers(Layout(Path(sys.argv[1])))))
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGTERM)
assert received.wait(60)
print("seconds until an abort:", signal.alarm(0))
started[0].close()
"""


def test_sigterm_reaches_python_without_a_pending_abort(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "seconds until an abort: 0\n")
    assert "SIGTERM received" not in ended.stderr
