"""A step that is in one long call of C code, which holds the interpreter, is ended when its run is asked to stop."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from flows.processes.stop_signals import enforce_stop
from tests.flows.checkout import REPOSITORY
from tests.waiting import wait_for

SLOW = pytest.mark.slow
DEAF = """
import os
from pathlib import Path

def nested():
    found = [0]
    for _ in range(40):
        found = [found] * 99
    return found

def hold(context, *, told: str):
    (context.checkpoints / "state.txt").write_text("7")
    (context.output("result") / "n.txt").write_text("1")
    Path(told).write_text(str(os.getpid()))
    return {"same": nested() == nested()}  # one call, for as long as the world stands
"""
RECIPE = """
name: deaf
stages:
  a: {kind: python, function: {use: "deaf_work:hold", told: TOLD}}
"""
ALONE = f"""
import signal, sys, threading
from pathlib import Path
from flows.processes.stop_signals import enforce_stop
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: None)
{DEAF[: DEAF.index("def hold")]}
with enforce_stop(grace=float(sys.argv[2])):
    Path(sys.argv[1]).write_text("ready")
    nested() == nested()
"""


def deaf(tmp_path, grace):
    marker = tmp_path / "told"
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(marker), str(grace)], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: marker.is_file() and marker.read_text(), alive=lambda: process.poll() is None)
    time.sleep(0.2)  # it writes before it compares
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_ignores_signals_is_killed_after_the_grace_period(tmp_path, number):
    process = deaf(tmp_path, 1.0)
    children = psutil.Process(process.pid).children()
    began = time.monotonic()
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert time.monotonic() - began >= 0.9
    assert "did not stop in time" in output
    psutil.wait_procs(children, timeout=10)
    assert len(children) == 1
    assert not children[0].is_running()


def test_a_second_signal_ends_the_process_immediately(tmp_path):
    process = deaf(tmp_path, 3600.0)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_without_a_signal_nothing_is_ended_and_nothing_is_left():
    before, mine = signal.set_wakeup_fd(-1), psutil.Process()
    signal.set_wakeup_fd(before)
    known = set(mine.children())
    with enforce_stop(grace=0.0):
        assert len(set(mine.children()) - known) == 1
    assert set(mine.children()) == known
    assert signal.set_wakeup_fd(before) == before


def test_another_thread_has_no_signals_to_wait_for():
    entered = []

    def enter():
        with enforce_stop():
            entered.append(psutil.Process().children())

    known = psutil.Process().children()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [known]


def start(checkout, tmp_path, executor):
    marker = tmp_path / "told"
    made = checkout("deaf", RECIPE.replace("TOLD", str(marker)), {"deaf_work": DEAF})
    process = made.run(executor)
    wait_for(lambda: marker.is_file() and marker.read_text(), alive=lambda: process.poll() is None)
    return made, process, int(marker.read_text())


@pytest.mark.parametrize(("executor", "again"), [("inprocess", True), pytest.param("inprocess", False, marks=SLOW)])
def test_a_run_whose_step_holds_the_interpreter_ends_and_can_be_gone_on_with(checkout, tmp_path, executor, again):
    made, process, worker = start(checkout, tmp_path, executor)
    assert worker == process.pid
    process.send_signal(signal.SIGTERM)
    if again:
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGKILL
    assert "continue with: posttrain resume" in made.output.read_text()
    made.is_quiet()
    assert [p.read_text() for p in made.layout.state.glob("work/*/checkpoints/state.txt")] == ["7"]
    if not again:
        hears = DEAF.replace("nested() == nested()", 'int((context.checkpoints / "state.txt").read_text())')
        (tmp_path / "deaf" / "deaf_work.py").write_text(hears)
        made.finish(made.go_on(executor))


@SLOW
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_on_ray_ends_the_worker_that_holds_the_interpreter(checkout, tmp_path, number):
    made, process, worker = start(checkout, tmp_path, "ray")
    assert worker != process.pid
    process.send_signal(number)
    assert process.wait(60) == 130, made.output.read_text()
    assert not psutil.pid_exists(worker)
    made.is_quiet()


@SLOW
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_worker_itself_ends_it(checkout, tmp_path, number):
    made, process, worker = start(checkout, tmp_path, "ray")
    os.kill(worker, number)
    assert process.wait(60) == 1, made.output.read_text()
    assert "its worker process died" in made.output.read_text()
    made.is_quiet()
