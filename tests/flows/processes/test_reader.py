import os
import subprocess
import sys

from tests.flows.checkout import REPOSITORY

PRINTS = """
import os, sys, time
from pathlib import Path
from rich.console import Console
if sys.argv[1] == "outlive":
    from flows.processes.capture import survive_closed_output
    survive_closed_output()
console = Console(file=sys.stderr)
print("begun", flush=True)
limit = time.monotonic() + 60
while os.fstat(1).st_rdev != os.stat(os.devnull).st_rdev and sys.argv[1] == "outlive":
    assert time.monotonic() < limit
    time.sleep(0.01)
while not Path("closed").exists():
    time.sleep(0.01)
for number in range(100):
    console.print("a line of a log", number)
    print("a line", number, flush=True)
Path("ended").write_text("well")
"""


def printed(folder, how):
    """Exit code of a process that prints on after its reader has gone."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTS, how],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"begun\n"
    process.stdout.close()
    process.stderr.close()
    (folder / "closed").touch()
    process.wait(120)
    return process.returncode, (folder / "ended").exists()


def test_a_process_outlives_the_reader_of_its_output(tmp_path):
    assert printed(tmp_path / "with", "outlive") == (0, True)
    assert printed(tmp_path / "without", "plain")[1] is False  # what it is for
