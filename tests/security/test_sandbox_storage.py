"""What a program stores is counted while it waits: bounds of the count, and that nothing it does can end a run."""

import fcntl
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from learning.sandbox import storage
from learning.sandbox.run import available, run
from learning.sandbox.storage import BLOCK, FILE_BYTES, INDEX, MAX_BYTES, Storage, may_grow_to

ROOT = Path(__file__).parents[2]
guarded = pytest.mark.skipif(available() is not None, reason=str(available()))
MB = 2**20


def files(*sizes, writes):
    return {(1, number): (size, writes) for number, size in enumerate(sizes)}


@pytest.mark.parametrize("open_already", range(0, 64, 7))
@pytest.mark.parametrize("size", [0, 5000, MB, 3 * MB])
@pytest.mark.parametrize("stored", [0, 10 * MB, 30 * MB])
def test_all_files_together_stay_within_the_bound_however_they_grow(open_already, size, stored):
    writing = {(2, number): (size + number, True) for number in range(open_already)}
    held = {**files(stored, writes=False), **writing}
    most = may_grow_to(held, 0)
    grown = stored + sum(max(size, most) + INDEX for size, _ in writing.values()) + most + INDEX
    now = stored + sum(size for size, _ in writing.values())
    assert grown <= MAX_BYTES or most < BLOCK
    assert most % BLOCK == 0
    if now < MAX_BYTES / 2:
        assert most >= min(FILE_BYTES, (MAX_BYTES - now) // (open_already + 1)) - INDEX - BLOCK, "no less than is left"


def test_what_is_stored_and_removed_takes_from_what_is_left():
    assert may_grow_to({}, 0) == FILE_BYTES
    assert may_grow_to(files(MAX_BYTES - 5 * MB, writes=False), 0) == 5 * MB - INDEX
    assert may_grow_to(files(16 * MB, 16 * MB, 16 * MB, writes=True), 0) == 16 * MB - 4 * INDEX
    assert may_grow_to({}, 3) == 16 * MB - 4 * INDEX
    assert may_grow_to({}, 4) < BLOCK
    assert may_grow_to(files(MAX_BYTES + 1, writes=False), 0) < BLOCK


@guarded
def test_openings_end_at_their_bound(monkeypatch):
    monkeypatch.setattr(storage, "MAX_OPENINGS", 50)
    ran = run("for _ in range(99):\n    print(len(__import__('os').listdir()), flush=True)\n    open('f', 'w').close()")
    assert (ran.reason, ran.code) == ("more than 50 openings for writing", -signal.SIGKILL)
    assert len(ran.stdout.splitlines()) == 51


@guarded
def test_a_count_is_not_believed_if_the_program_went_on_meanwhile(monkeypatch):
    """As where a signal of its own ends the waiting: no bound is set and no answer given for what was counted."""
    asked, bounds, really = [], [], Storage._control

    def interrupted(self, request, about):
        asked.append(request)
        return request != storage.WAITS and really(self, request, about)

    available()
    monkeypatch.setattr(Storage, "_control", interrupted)
    monkeypatch.setattr(storage.resource, "prlimit", lambda *limit: bounds.append(limit))
    ran = run("open('f', 'w')\nprint('went on')", seconds=0.3)
    assert (ran.stdout, ran.timed_out) == ("", True)
    assert (asked, bounds) == ([storage.RECEIVE, storage.WAITS], [])


@guarded
@pytest.mark.parametrize("turn", range(20))
def test_files_made_and_removed_without_end_end_no_run(turn):
    """The folder changes at every moment at which it might be looked at."""
    code = """
import os
while True:
    for name in "abcdefgh":
        open(name, "w").close()
    for name in "abcdefgh":
        os.rename(name, name * 9)
        os.unlink(name * 9)
"""
    ran = run(code, seconds=0.15, keep=["a", "b"], files={"deep/er": "x"})
    assert (ran.timed_out, ran.code, ran.stderr) == (True, -signal.SIGKILL, "")


@guarded
def test_a_sweep_of_another_run_that_comes_before_the_lock_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    swept, really = [], fcntl.flock

    def late(lock, how):
        if len(swept) < 2 and how == fcntl.LOCK_EX:
            swept.append(Path(lock.name).parent)
            shutil.rmtree(swept[-1])
        really(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert run("print(1)").stdout == "1\n"
    assert (len(swept), list(tmp_path.iterdir())) == (2, [])


@guarded
def test_a_file_that_cannot_be_read_is_not_kept():
    code = """
import os
os.umask(0o777)
os.close(os.open("shut", os.O_WRONLY | os.O_CREAT, 0))
open("open", "w")
os.rename("open", "x" * 255)
os.close(os.open(b"\\xff\\n (deleted)", os.O_WRONLY | os.O_CREAT))
open("last", "w")
print("done")
"""
    ran = run(code, keep=["shut", "missing", "x" * 255, "x" * 256, "\0", "."])
    assert (ran.stdout, ran.reason) == ("done\n", "")
    assert set(ran.files) <= {"shut", "x" * 255}


@guarded
def test_honest_programs_store_what_they_need():
    code = """
import csv, json, os, shutil, sqlite3, tempfile
with tempfile.TemporaryFile("w+") as file:
    file.write("x" * 2**20)
with tempfile.NamedTemporaryFile("w") as file:
    file.write("x")
files = {letter: open(letter, "w") for letter in "abcdefghijklmnopqrstuvwxyz"}
for letter, file in files.items():
    file.write(letter * 10**6)
    file.close()
json.dump([1], open("new", "w"))
os.replace("new", "a")
shutil.copyfile("b", "c")
with sqlite3.connect("data.db") as base:
    base.execute("create table t (x)")
    base.executemany("insert into t values (?)", [(i,) for i in range(1000)])
print(base.execute("select sum(x) from t").fetchone()[0], os.stat("c").st_size, open("a").read())
"""
    ran = run(code, seconds=60)
    assert (ran.stdout, ran.stderr, ran.reason) == ("499500 1000000 [1]\n", "", "")


WITHOUT_RIGHTS = """
from learning.sandbox.child import drop_capabilities
from learning.sandbox.run import run
drop_capabilities()
code = "for n in range(9):\\n  with open(str(n), 'wb') as f: f.write(bytes(2**24))\\n  print(n, flush=True)"
ran = run(code, seconds=60)
print(ran.reason, ran.stdout.split(), ran.stderr[-40:])
"""


@guarded
def test_counting_needs_no_right_over_other_processes():
    done = subprocess.run([sys.executable, "-c", WITHOUT_RIGHTS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("]")[0] == " ['0', '1', '2'"
    assert "OSError: [Errno 27] File too large" in done.stdout
