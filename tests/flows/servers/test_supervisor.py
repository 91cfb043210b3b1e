"""Services that die are started again and said; nothing outlives the one who keeps them, however that ends."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from flows.servers.log_rotation import KEPT_LOG
from tests.flows.checkout import REPOSITORY
from tests.waiting import wait_for

KEEP = """
import os, sys, time
from pathlib import Path
from flows.servers import supervisor
from flows.processes.process_tree import run_in_process_tree
from flows.servers.supervisor import Service, Supervisor

folder, kind = Path(sys.argv[1]), sys.argv[2]
supervisor.FIRST_WAIT = 0.05
supervisor.STOP_TIMEOUT = 1.0
mark = {**os.environ, "KEPT": str(folder)}
# Each starts a child in a session of its own, and takes its time when it is asked to end.
body = '''
import os, signal, subprocess, sys, time
name = sys.argv[1]
if name == "broken":
    sys.exit(4)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
def end(number, frame):
    open("ends", "a").write(name + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(name + ".pids", "w").write(f"{os.getpid()} {child.pid}")
while True:
    time.sleep(60)
'''
def service(name, **more):
    there = folder / (name + ".pids")
    return Service(name, [sys.executable, "-c", body, name], mark, lambda since: there.is_file(), **more)

job = '''
import signal, sys, time
def end(number, frame):
    open("ends", "a").write("job ")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open("job.pid", "w").write(str(__import__("os").getpid()))
while True:
    time.sleep(60)
'''
boss = f'''
import signal, subprocess, sys, time
from pathlib import Path
if not Path("job.pid").exists():
    subprocess.Popen([sys.executable, "-c", {job!r}], start_new_session=True)
signal.signal(signal.SIGTERM, lambda number, frame: (open("ends", "a").write("boss "), sys.exit(0)))
while True:
    time.sleep(60)
'''
def boss_service():
    there = folder / "job.pid"
    return Service("boss", [sys.executable, "-c", boss], mark, lambda since: there.is_file(), "first", jobs=True)

made = {
    "pair": lambda: [service("first"), service("second", needs="first")],
    "broken": lambda: [service("first"), service("broken", needs="first")],
    "boss": lambda: [service("first"), boss_service()],
}[kind]()

def work(stopped):
    def changed(pids):
        temporary = folder / "pids.tmp"
        temporary.write_text(__import__("json").dumps({"keeper": os.getpid(), **pids}))
        temporary.replace(folder / "pids.json")
    keeper = Supervisor(made, folder, lambda name, text: print(name, text, flush=True), changed)
    keeper.run(stopped, lambda: print("ready", flush=True))
    return 0

sys.exit(run_in_process_tree(work))
"""


class Keeper:
    def __init__(self, folder, kind):
        self.folder, self.output = folder, folder / "output.txt"
        with self.output.open("w") as output:
            self.front = subprocess.Popen(
                [sys.executable, "-c", KEEP, str(folder), kind],
                cwd=REPOSITORY,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "KEPT": str(folder)},
            )

    def pids(self):
        try:
            return json.loads((self.folder / "pids.json").read_text())
        except (OSError, ValueError):
            return {}

    def alive(self):
        pids = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("KEPT") == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    pids.append(process)
            except psutil.Error:
                continue
        return pids

    def said(self, text):
        return text in self.output.read_text()

    def is_ready(self):
        wait_for(lambda: self.said("ready"), alive=lambda: self.front.poll() is None, said=self.output.read_text)


@pytest.fixture
def keep(tmp_path):
    made = []

    def start(kind):
        made.append(Keeper(tmp_path, kind))
        return made[-1]

    yield start
    for keeper in made:
        for process in keeper.alive():
            process.kill()
        keeper.front.wait()


def test_a_log_is_rotated_while_its_service_runs(keep, tmp_path):
    keeper = keep("pair")
    keeper.is_ready()
    with (tmp_path / "first.log").open("ab") as log:
        log.write(b"x" * (KEPT_LOG + 1))
    old = tmp_path / "first.log.old"
    wait_for(lambda: old.is_file() and (tmp_path / "first.log").stat().st_size == 0)
    assert old.stat().st_size == KEPT_LOG + 1
    assert not (tmp_path / "second.log.old").exists()
    assert keeper.front.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_in_the_opposite_order(keep, number):
    keeper = keep("pair")
    keeper.is_ready()
    assert len(keeper.alive()) == 6  # front, keeper, two services, two children in sessions of their own
    os.killpg(keeper.front.pid, number)  # as a terminal does
    assert keeper.front.wait(60) == 0
    assert (keeper.folder / "ends").read_text().split() == ["second", "first"]
    assert keeper.alive() == []


@pytest.mark.parametrize("victim", ["front", "keeper", "both"])
def test_killed_it_leaves_nothing_behind(keep, victim):
    keeper = keep("pair")
    keeper.is_ready()
    pids = {"front": keeper.front.pid, "keeper": keeper.pids()["keeper"]}
    for name, pid in pids.items():
        if victim in (name, "both"):
            os.kill(pid, signal.SIGKILL)
    keeper.front.wait(60)
    services = {pid for name, pid in keeper.pids().items() if name != "keeper"}
    if victim == "both":  # nobody is left to look for grandchildren; the kernel ends what was started directly
        wait_for(lambda: not services & {process.pid for process in keeper.alive()})
    else:
        wait_for(lambda: keeper.alive() == [])
    if victim == "front":  # the keeper notices, and ends everything as if it had been asked to
        assert (keeper.folder / "ends").read_text().split() == ["second", "first"]


def test_processes_that_die_are_restarted_and_reported(keep):
    keeper = keep("pair")
    keeper.is_ready()
    before = keeper.pids()
    own = int((keeper.folder / "first.pids").read_text().split()[0])
    assert own == before["first"]
    os.kill(own, signal.SIGKILL)
    wait_for(lambda: keeper.said("first answers again"))
    assert keeper.said(f"first was killed by signal 9; restarting in 0 s; see {keeper.folder}/first.log")
    after = keeper.pids()
    assert after["second"] == before["second"]
    assert after["first"] != before["first"]
    keeper.front.terminate()
    assert keeper.front.wait(60) == 0
    assert keeper.alive() == []


def test_the_jobs_of_a_service_outlive_it_and_are_asked_before_it_ends(keep):
    keeper = keep("boss")
    keeper.is_ready()
    job = int((keeper.folder / "job.pid").read_text())
    os.kill(keeper.pids()["boss"], signal.SIGKILL)
    wait_for(lambda: keeper.said("boss answers again"))
    assert keeper.said("boss was killed by signal 9; 1 of its flow runs continue without it; restarting")
    assert psutil.Process(job).is_running()
    keeper.front.terminate()
    assert keeper.front.wait(60) == 0
    assert (keeper.folder / "ends").read_text().split() == ["job", "boss", "first"]
    assert keeper.alive() == []


def test_what_never_answered_is_not_started_for_ever(keep):
    keeper = keep("broken")
    assert keeper.front.wait(60) == 1
    assert keeper.said(f"broken ended with exit code 4 before it answered; see {keeper.folder}/broken.log")
    assert keeper.alive() == []
