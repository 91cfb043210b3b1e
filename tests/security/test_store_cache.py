"""What the digest cache remembers is what was hashed, and a file that may have changed since is hashed again."""

import hashlib
import json
import mmap
import os
import shutil
import time

import pytest

from lineage.artifacts import digest_cache
from lineage.artifacts.digest_cache import DigestCache, hash_file, scan_folder
from lineage.keys import load_signer
from lineage.layout import Layout

OLD = 10 * digest_cache.SETTLED


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of files whose changes count as old, and a cache with a key."""
    layout = Layout(tmp_path)
    load_signer(layout)
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name, text in (("a.bin", b"a" * 100), ("sub/b.bin", b"b" * 100)):
        (folder / name).write_bytes(text)
    now = time.time_ns
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: now() + OLD)
    return folder, DigestCache(layout)


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files that are read."""
    names = []

    def noted(path, **more):
        names.append(path.name)
        return hash_file(path, **more)

    monkeypatch.setattr(digest_cache, "hash_file", noted)
    return names


def ask(place):
    folder, cache = place
    return cache.digests(folder, scan_folder(folder).files)


def true(place):
    folder, _ = place
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("a.bin", "sub/b.bin")}


def record(place):
    (path,) = (place[1].layout.state / "cache/digests").iterdir()
    return path


def test_a_file_is_hashed_once_per_change(place, hashed):
    assert ask(place) == ask(place) == true(place)
    assert sorted(hashed) == ["a.bin", "b.bin"]
    before = (place[0] / "a.bin").stat()
    (place[0] / "a.bin").write_bytes(b"c" * 100)
    os.utime(place[0] / "a.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ask(place) == true(place)
    assert sorted(hashed) == ["a.bin", "a.bin", "b.bin"]


def test_a_file_that_has_just_changed_is_not_remembered(place, hashed, monkeypatch):
    monkeypatch.undo()
    ask(place)
    assert not (place[1].layout.state / "cache").exists()
    (place[0] / "a.bin").write_bytes(b"d" * 100)
    assert ask(place) == true(place)


def test_without_a_signing_key_nothing_is_remembered(place, hashed):
    shutil.rmtree(place[1].layout.state / "keys")
    assert ask(place) == ask(place) == true(place)
    assert len(hashed) == 4
    assert not (place[1].layout.state / "keys").exists()


def test_a_record_of_another_signing_key_is_not_believed(place, hashed):
    ask(place)
    shutil.rmtree(place[1].layout.state / "keys")
    load_signer(place[1].layout)
    assert ask(place) == true(place)
    assert len(hashed) == 4


@pytest.mark.parametrize(
    "lie", ["digest", "no seal", "keyless seal", "garbage", "nested", "empty", "of another folder"]
)
def test_a_record_written_by_hand_is_not_believed(place, lie):
    folder, _ = place
    good = ask(place)
    path = record(place)
    seal, _, body = path.read_bytes().partition(b"\n")
    (folder / "a.bin").write_bytes(b"x" * 100)
    (folder / "other").mkdir()
    lies = json.loads(body)
    status = (folder / "a.bin").stat()
    lies["files"]["a.bin"] = [status.st_dev, status.st_ino, 100, status.st_mtime_ns, status.st_ctime_ns, good["a.bin"]]
    forged = json.dumps(lies).encode()
    path.write_bytes(
        {
            "digest": seal + b"\n" + forged,
            "no seal": forged,
            "keyless seal": hashlib.sha256(forged).hexdigest().encode() + b"\n" + forged,
            "garbage": b"\xff" * 1000,
            "nested": b"[" * 100_000,
            "empty": b"",
            "of another folder": seal + b"\n" + body.replace(str(folder).encode(), str(folder / "other").encode()),
        }[lie]
    )
    assert ask(place) == true(place)
    assert ask(place)["a.bin"] != good["a.bin"]


def test_a_true_record_in_the_place_of_another_folders_is_not_believed(place):
    folder, cache = place
    ask(place)
    mine = record(place)
    other = folder.with_name("other")
    other.mkdir()
    (other / "a.bin").write_bytes(b"q" * 100)
    cache.digests(other, scan_folder(other).files)
    (theirs,) = [path for path in mine.parent.iterdir() if path != mine]
    theirs.write_bytes(mine.read_bytes())
    assert cache.digests(other, scan_folder(other).files) == {"a.bin": hashlib.sha256(b"q" * 100).hexdigest()}


def dates_mapped_writes(path):
    """Whether the file system gives a flushed file another ctime when it is written through a memory map."""
    path.write_bytes(b"p" * 100)
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 100) as view:
        os.fdatasync(stream.fileno())
        before = path.stat().st_ctime_ns
        time.sleep(0.05)
        view[0] = ord("q")
        return path.stat().st_ctime_ns != before


def test_a_write_through_a_memory_map_is_seen(place, tmp_path):
    if not dates_mapped_writes(tmp_path / "probe"):
        pytest.skip("this file system does not date writes through memory maps (docs/integrity.md)")
    path = place[0] / "a.bin"
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 100) as view:
        view[0] = ord("m")  # the page is dirty, and its time is set now and not again until it is flushed
        first = ask(place)
        assert first == true(place)
        time.sleep(0.05)  # the clock of the file system ticks
        view[1] = ord("n")
        assert ask(place)["a.bin"] == true(place)["a.bin"] != first["a.bin"]


def test_records_are_bounded(place, monkeypatch):
    folder, cache = place
    monkeypatch.setattr(digest_cache, "RECORDS", 8)
    for number in range(30):
        one = folder / f"f{number}"
        one.mkdir()
        (one / "x").write_text(str(number))
        cache.digests(one, scan_folder(one).files)
    assert len(list((cache.layout.state / "cache/digests").iterdir())) <= 8


def test_what_is_no_file_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "folder").symlink_to("/etc")
    assert scan_folder(tmp_path).files == {}
    assert scan_folder(tmp_path).strange == ("folder", "link", "pipe")
    assert hash_file(tmp_path / "pipe") == hash_file(tmp_path / "link") == ("", None)


def test_large_files_are_hashed_by_several_threads_to_the_same_digests(place, monkeypatch):
    monkeypatch.setattr(digest_cache, "PARALLEL", 1)
    assert ask(place) == true(place)
