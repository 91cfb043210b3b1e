"""Processes that a killed `up` left are killed by their identity, and no other process is."""

import os
import subprocess
import sys

import psutil
import pytest

from flows.servers.orphans import FILE, VARIABLE, end_orphans, end_previous
from tests.flows.checkout import REPOSITORY
from tests.waiting import wait_for

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
KEEPER = """
import os, subprocess, sys, time
from pathlib import Path
from flows.servers.orphans import guard_children

with guard_children(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(child.pid, flush=True)
    sys.stdin.read()
print(os.environ.get("POSTTRAIN_UP"))
"""


@pytest.fixture
def sleeper():
    made = []

    def start(identity):
        environment = os.environ | ({VARIABLE: identity} if identity else {})
        made.append(subprocess.Popen(SLEEP, env=environment, start_new_session=True))
        wait_for(lambda: "time.sleep(600)" in " ".join(psutil.Process(made[-1].pid).cmdline()))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_only_processes_with_the_identity_are_killed(sleeper, tmp_path):
    mine, others, strangers = sleeper("a" * 32), sleeper("b" * 32), sleeper("")
    (tmp_path / FILE).write_text("a" * 32)
    (killed,) = end_previous(tmp_path)
    assert "time.sleep(600)" in killed
    assert mine.wait(10) == -9
    assert others.poll() is None
    assert strangers.poll() is None


def test_without_an_identity_nothing_is_killed(sleeper, tmp_path):
    nameless = sleeper("")
    (tmp_path / FILE).write_text("")
    assert end_previous(tmp_path) == []
    assert end_previous(tmp_path / "never") == []
    assert end_orphans("c" * 32) == []
    assert nameless.poll() is None


def is_gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def keeper(tmp_path):
    program = [sys.executable, "-c", KEEPER, str(tmp_path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        child = psutil.Process(int(process.stdout.readline()))
        (guard,) = [other for other in psutil.Process(process.pid).children() if other.pid != child.pid]
        yield process, guard, child
        process.kill()
    wait_for(lambda: is_gone(child))


def test_children_of_a_killed_process_are_killed_by_its_guard(keeper):
    process, _, child = keeper
    process.kill()
    wait_for(lambda: is_gone(child))


def test_children_that_the_guard_did_not_live_to_kill_are_killed_by_the_next(keeper, tmp_path):
    process, guard, child = keeper
    guard.kill()
    process.kill()
    process.wait()
    assert not is_gone(child)
    assert len(end_previous(tmp_path)) == 1
    wait_for(lambda: is_gone(child))


def test_a_process_that_ends_in_order_has_no_guard_or_identity_left(keeper):
    process, guard, child = keeper
    output, _ = process.communicate(timeout=60)
    assert output == b"None\n"
    assert is_gone(guard)
    assert is_gone(child)
