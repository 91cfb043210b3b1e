"""A file that is written again is what it was or what it is to be, for readers and after a kill."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from schemas.atomic_write import atomic_file, is_fragment, write_text_atomically

KILLED = """
import os, signal, sys
from pathlib import Path
from schemas.atomic_write import atomic_file

with atomic_file(Path(sys.argv[1])) as fresh:
    fresh.write_text("half of wh")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_content(tmp_path):
    file = tmp_path / "told.json"
    write_text_atomically(file, "whole")
    assert subprocess.run([sys.executable, "-c", KILLED, str(file)]).returncode == -signal.SIGKILL
    assert file.read_text() == "whole"
    (left,) = set(tmp_path.iterdir()) - {file}
    assert is_fragment(left)
    assert not is_fragment(file)
    write_text_atomically(file, "new")
    assert file.read_text() == "new"


def test_an_error_leaves_nothing_behind(tmp_path):
    file = tmp_path / "made" / "on" / "the" / "way" / "told"

    def fails():
        with atomic_file(file) as fresh:
            fresh.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("flush", [True, False])
def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, flush):
    file, order = tmp_path / "told", []
    sync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("flush"), sync(handle)))
    monkeypatch.setattr(type(tmp_path), "replace", lambda old, new: (order.append("rename"), replace(old, new))[1])
    with atomic_file(file, flush=flush) as fresh:
        fresh.write_bytes(b"12")
    assert order == ["flush"] * flush + ["rename"]
    assert file.read_bytes() == b"12"


def test_of_two_writers_at_once_one_wins_and_readers_see_no_mixture(tmp_path):
    file, texts = tmp_path / "told", [letter * 100_000 for letter in "ab"]
    write_text_atomically(file, texts[0])
    writers = [threading.Thread(target=lambda t=t: [write_text_atomically(file, t) for _ in range(20)]) for t in texts]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(file.read_text())
    assert seen <= set(texts)
    assert list(tmp_path.iterdir()) == [file]
