"""Changes are told exactly once, whatever is killed when; only what rests counts."""

import json
import os
from functools import partial

import pytest

from flows.deployments import watching
from flows.deployments.watching import Change, Watch
from lineage.layout import Layout
from lineage.sources.watched import digest_source, stat_source


class Listener:
    """Starts a run per key, as Prefect does: a key it knows starts none."""

    def __init__(self):
        self.runs, self.calls = {}, 0

    def __call__(self, changes, key):
        self.calls += 1
        self.runs.setdefault(key, [str(change) for change in changes])


@pytest.fixture
def files(tmp_path):
    return Layout(tmp_path), tmp_path / "state.json"


def watch(files, *sources):
    layout, state = files
    look = {"layout": layout, "folders": (layout.root,)}
    return Watch(state, sources, partial(stat_source, **look), partial(digest_source, **look))


def looks(watch, listener, times=2):
    return [change for _ in range(times) for change in watch.look(listener)]


def test_the_first_look_reports_no_change_and_a_change_is_reported_once(files):
    layout, _ = files
    (layout.root / "data.csv").write_text("1")
    seen, listener = watch(files, "path:data.csv"), Listener()
    assert looks(seen, listener, 5) == []
    (layout.root / "data.csv").write_text("2, and more")
    assert [c.source for c in looks(seen, listener, 5)] == ["path:data.csv"]
    assert (listener.calls, len(listener.runs)) == (1, 1)


def test_a_file_that_is_still_written_is_waited_for(files):
    layout, _ = files
    data = layout.root / "data.csv"
    data.write_text("1")
    seen, listener = watch(files, "path:data.csv"), Listener()
    looks(seen, listener)
    for number in range(2, 6):
        data.write_text("1" * number)
        assert seen.look(listener) == []
    assert len(looks(seen, listener)) == 1


def test_touching_or_rewriting_the_same_bytes_is_no_change(files):
    layout, _ = files
    (layout.root / "data").mkdir()
    (layout.root / "data/a").write_text("1")
    seen, listener = watch(files, "path:data"), Listener()
    looks(seen, listener)
    os.utime(layout.root / "data/a", (1, 1))
    assert looks(seen, listener, 3) == []
    (layout.root / "data/b").write_text("2")
    assert len(looks(seen, listener, 3)) == 1
    (layout.root / "data/b").unlink()
    assert len(looks(seen, listener, 3)) == 1


def test_back_and_forth_are_three_changes(files):
    layout, _ = files
    seen, listener = watch(files, "path:x"), Listener()
    for text in "abab":
        (layout.root / "x").write_text(text)
        os.utime(layout.root / "x", (1, 1))  # a copy that keeps the time of its original
        looks(seen, listener)
    assert len(listener.runs) == 3


def test_what_appears_is_a_change_and_what_vanishes_is_not(files):
    layout, _ = files
    seen, listener = watch(files, "path:x"), Listener()
    assert looks(seen, listener) == []
    (layout.root / "x").write_text("1")
    changes = looks(seen, listener)
    assert [(c.before, bool(c.after)) for c in changes] == [(None, True)]
    (layout.root / "x").unlink()
    assert looks(seen, listener, 3) == []
    (layout.root / "x").write_text("1")
    assert looks(seen, listener, 3) == []


class Killed(BaseException):
    pass


def test_killed_between_notifying_and_recording_notifies_with_the_same_key(files, monkeypatch):
    layout, _ = files
    (layout.root / "x").write_text("1")
    listener = Listener()
    looks(watch(files, "path:x"), listener)
    (layout.root / "x").write_text("22")
    with monkeypatch.context() as patch:
        patch.setattr(watching, "write_text_atomically", lambda file, text: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            looks(watch(files, "path:x"), listener)
    assert looks(watch(files, "path:x"), listener) != []
    assert (listener.calls, len(listener.runs)) == (2, 1)
    assert looks(watch(files, "path:x"), listener) == []


def refused(changes, key):
    raise ConnectionError


def test_a_change_that_could_not_be_reported_is_reported_later(files):
    layout, _ = files
    (layout.root / "x").write_text("1")
    listener = Listener()
    looks(watch(files, "path:x"), listener)
    (layout.root / "x").write_text("22")
    again = watch(files, "path:x")
    again.look(listener)
    for _ in range(3):
        with pytest.raises(ConnectionError):
            again.look(refused)
    assert len(looks(again, listener)) == 1
    assert len(listener.runs) == 1


def test_a_source_that_is_new_in_the_recipe_is_no_change_and_one_that_left_is_forgotten(files):
    layout, state = files
    for name in "ab":
        (layout.root / name).write_text(name)
    listener = Listener()
    looks(watch(files, "path:a"), listener)
    assert looks(watch(files, "path:b"), listener) == []
    assert list(json.loads(state.read_text())["digests"]) == ["path:b"]


def test_simultaneous_changes_start_one_run(files):
    layout, _ = files
    for name in "ab":
        (layout.root / name).write_text(name)
    seen, listener = watch(files, "path:a", "path:b"), Listener()
    looks(seen, listener)
    for name in "ab":
        (layout.root / name).write_text(name * 2)
    assert len(looks(seen, listener)) == 2
    assert [len(changes) for changes in listener.runs.values()] == [2]


def test_a_change_says_what_became_what():
    assert str(Change("dvc:x", None, "a" * 32)) == "dvc:x: nothing → aaaaaaaaaaaa"
    assert str(Change("mlflow:m@champion", "version 1", "version 2")) == "mlflow:m@champion: version 1 → version 2"
