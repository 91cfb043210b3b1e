"""Objects in real processes of Ray."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from flows.processes.process_tree import ProcessGroup
from flows.steps.ray_actors import RayActors, StepHome
from flows.steps.ray_workers import RayWorkers
from learning.parallel.actors import Lost
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.resources import Resources, Role

pytestmark = pytest.mark.filterwarnings("ignore")
TIMEOUT = 120
SECRET = "hush-hush"


class Counter:
    """What runs in the processes."""

    def __init__(self, start, refuse=""):
        if refuse:
            raise StepError(refuse)
        self.value = start

    def add(self, more):
        self.value += more
        return self.value

    def where(self):
        return {"pid": os.getpid(), "group": os.getpgid(0), "threads": os.environ["OMP_NUM_THREADS"]}

    def fail(self, error):
        print("before the end")
        raise error

    def devices(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Ray of this machine, for all tests of the file."""
    kept = dict(os.environ)
    made = RayWorkers(Layout(tmp_path_factory.mktemp("root")))
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture
def actors(cluster, tmp_path):
    home = StepHome(ProcessGroup.of_this_process(), tmp_path / "log", (), frozenset({SECRET}))
    made = RayActors(Resources(reward=Role(workers=2, num_cpus=0.25)), home)
    yield made
    made.close()


def test_processes_of_their_own_with_their_threads_in_the_steps_group(actors):
    first, second = actors.start("reward", Counter, 3)
    places = [remote.call("where").result(TIMEOUT) for remote in (first, second)]
    assert len({os.getpid(), *(one["pid"] for one in places)}) == 3
    assert {one["group"] for one in places} == {os.getpgid(0)}
    assert {one["threads"] for one in places} == {"1"}
    assert first.call("devices").result(TIMEOUT) == ""
    # One call after the other, in order; each worker has an object of its own.
    answers = [first.call("add", n) for n in (1, 10, 100)]
    assert [a.result(TIMEOUT) for a in answers] == [4, 14, 114]
    assert second.call("add", 0).result(TIMEOUT) == 3
    with pytest.raises(StepError, match="already running"):
        actors.start("reward", Counter, 0)
    assert actors.size("reward") == 2
    assert actors.size("rollout") == 0


@pytest.mark.slow
def test_errors_keep_their_message_and_are_logged(actors, tmp_path):
    first, _ = actors.start("reward", Counter, 0)
    with pytest.raises(StepError, match=r"^lower the temperature$"):
        first.call("fail", StepError("lower the temperature")).result(TIMEOUT)
    with pytest.raises(StepError, match=r"^reward: ZeroDivisionError: by hand$"):
        first.call("fail", ZeroDivisionError("by hand")).result(TIMEOUT)
    with pytest.raises(StepError, match=r"^refused: \*\*\*$"):
        first.call("fail", StepError(f"refused: {SECRET}")).result(TIMEOUT)
    assert first.alive()
    assert first.call("add", 1).result(TIMEOUT) == 1
    log = (tmp_path / "log").read_text()
    assert log.count("before the end") == 3
    assert "ZeroDivisionError: by hand" in log
    assert "refused: ***" in log
    assert "hush" not in log


@pytest.mark.slow
def test_a_factory_that_fails_is_reported_by_every_call(actors):
    for remote in actors.start("reward", Counter, 0, refuse="no model here"):
        for _ in range(2):
            with pytest.raises(StepError, match=r"^no model here$"):
                remote.call("add", 1).result(TIMEOUT)


def test_a_killed_process_is_replaced(actors):
    first, second = actors.start("reward", Counter, 5)
    pid = first.call("where").result(TIMEOUT)["pid"]
    first.call("add", 1).result(TIMEOUT)
    os.kill(pid, signal.SIGSTOP)
    waiting = first.call("add", 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Lost, match="reward worker 0: its process died"):
        waiting.result(TIMEOUT)
    assert not first.alive()
    with pytest.raises(Lost):
        first.call("add", 1).result(TIMEOUT)
    fresh = actors.restart(first)
    assert fresh.call("add", 1).result(TIMEOUT) == 6
    assert fresh.call("where").result(TIMEOUT)["pid"] != pid
    assert second.call("add", 1).result(TIMEOUT) == 6


@pytest.mark.slow
def test_what_is_stopped_has_no_process(actors):
    first, second = actors.start("reward", Counter, 0)
    pids = [remote.call("where").result(TIMEOUT)["pid"] for remote in (first, second)]
    first.stop()
    first.stop()
    with pytest.raises(Lost, match="stopped"):
        first.call("add", 1).result(TIMEOUT)
    actors.close()
    _, left = psutil.wait_procs([psutil.Process(p) for p in pids if Path(f"/proc/{p}").exists()], timeout=TIMEOUT)
    assert not left
    again = actors.start("reward", Counter, 7)
    assert again[0].call("add", 0).result(TIMEOUT) == 7
