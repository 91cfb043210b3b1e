"""Digests of the files in a folder, each file hashed once per change.

A record in `.posttrain/cache/digests` holds the digests of the files of one folder, each with its device, inode, size,
mtime and ctime. The ctime cannot be set, so a file that was written to is hashed again even if its mtime was restored.
A record is authenticated with a key derived from the signing key: a forged record is ignored, and without a signing
key every file is hashed. docs/audit.md lists what this does not protect from.
"""

import contextlib
import hashlib
import hmac
import json
import os
import platform
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

from lineage.keys import derive_key
from lineage.layout import Layout
from schemas.atomic_write import atomic_file
from schemas.errors import PlanError

PURPOSE = "digest cache 1"
SETTLED = 2_000_000_000
"""Nanoseconds after which a further change of a file is certain to change its ctime."""
RECORDS = 4096
"""Most records to keep, one per folder; the oldest are removed."""
PARALLEL = 16 << 20
"""Smallest total size in bytes at which files are hashed by several threads."""


@dataclass(frozen=True)
class Stamp:
    """Metadata of a file; every write to the file changes some of it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp from the result of a stat call."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class Scan:
    """The files of a folder by relative path, and the paths that are neither a file nor a folder."""

    files: dict[str, Stamp]
    strange: tuple[str, ...]


def scan_folder(folder: Path, *, links: bool = False) -> Scan:
    """Return every file below a folder. With `links`, a link to a file counts as that file, else as strange.

    Folders behind links are not entered.
    """
    files: dict[str, Stamp] = {}
    strange: list[str] = []
    waiting = [("", os.fspath(folder))]
    while waiting:
        above, place = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                name = f"{above}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((f"{name}/", entry.path))
                elif _is_file(entry, links):
                    files[name] = Stamp.of(entry.stat(follow_symlinks=links))
                elif not links:
                    strange.append(name)
    return Scan(dict(sorted(files.items())), tuple(sorted(strange)))


def _is_file(entry: os.DirEntry[str], links: bool) -> bool:
    """Return whether an entry is a file; False for a circular link."""
    try:
        return entry.is_file(follow_symlinks=links)
    except OSError:
        return False


class DigestCache:
    """Cache of the sha256 of files in the state folder of a checkout."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def digests(self, folder: Path, files: Mapping[str, Stamp], *, links: bool = False) -> dict[str, str]:
        """Return the sha256 by path of the files that `scan_folder` returned; only changed files are read.

        A file that has been removed meanwhile, or cannot be read, has the digest "".
        """
        key = self._key()
        cached = self._read(folder, key) if key else {}
        digests = {
            name: cached[name][1] for name, stamp in files.items() if name in cached and cached[name][0] == stamp
        }
        missing = [name for name in files if name not in digests]
        if missing:
            settled = dict(_hash_all(folder, missing, sum(files[name].size for name in missing), links))
            digests |= {name: digest for name, (digest, _) in settled.items()}
            fresh = {name: (stamp, digest) for name, (digest, stamp) in settled.items() if stamp is not None}
            unchanged = {name: cached[name] for name in files if name in cached and name not in settled}
            if key and fresh:
                self._write(folder, key, unchanged | fresh)
        return {name: digests[name] for name in files}

    def _key(self) -> bytes | None:
        try:
            return derive_key(self.layout, PURPOSE)
        except (PlanError, OSError):
            return None

    def _file(self, folder: Path) -> Path:
        """Return the path of a folder's record, specific to this machine: device numbers differ between machines."""
        name = hashlib.sha256(f"{platform.node()}\0{folder}".encode()).hexdigest()[:32]
        return self.layout.state / "cache" / "digests" / name

    def _read(self, folder: Path, key: bytes) -> dict[str, tuple[Stamp, str]]:
        try:
            seal, _, body = self._file(folder).read_bytes().partition(b"\n")
            if not hmac.compare_digest(seal, _authenticate(key, body)):
                return {}
            record = json.loads(body)
            if record["folder"] != str(folder):
                return {}
            return {name: (Stamp(*row[:5]), row[5]) for name, row in record["files"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write(self, folder: Path, key: bytes, records: Mapping[str, tuple[Stamp, str]]) -> None:
        rows = {name: [*astuple(stamp), digest] for name, (stamp, digest) in records.items()}
        body = json.dumps({"folder": str(folder), "files": rows}).encode()
        target = self._file(folder)
        with contextlib.suppress(OSError):  # an unwritable cache only costs time
            with atomic_file(target, flush=False) as fresh:
                fresh.write_bytes(_authenticate(key, body) + b"\n" + body)
            _remove_oldest(target.parent)


def hash_file(path: Path, *, links: bool = False) -> tuple[str, Stamp | None]:
    """Return the sha256 of a regular file, and its stamp if every later change will be detected; else ("", None).

    A file whose stamp may be cached is flushed first; after that, a write through a memory map changes its ctime too.
    """
    before = time.time_ns()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    except OSError:
        return "", None
    with open(handle, "rb", buffering=0) as stream:  # noqa: PTH123 — of a handle
        try:
            first = os.fstat(handle)
            if not stat.S_ISREG(first.st_mode):
                return "", None
            is_settled = before - first.st_ctime_ns >= SETTLED
            if is_settled:
                with contextlib.suppress(OSError):
                    os.fdatasync(handle)
                first = os.fstat(handle)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stamp, after = Stamp.of(first), Stamp.of(os.fstat(handle))
        except OSError:
            return "", None
    return digest, stamp if is_settled and stamp == after else None


def _hash_all(
    folder: Path, names: Iterable[str], size: int, links: bool
) -> Iterable[tuple[str, tuple[str, Stamp | None]]]:
    names = list(names)
    paths = [folder / name for name in names]
    if size < PARALLEL or len(paths) < 2:
        return zip(names, [hash_file(path, links=links) for path in paths], strict=True)
    with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)), len(paths))) as pool:
        return zip(names, list(pool.map(lambda path: hash_file(path, links=links), paths)), strict=True)


def _authenticate(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode()


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest records if there are too many."""
    with os.scandir(folder) as entries:
        records = list(entries)
    if len(records) <= RECORDS:
        return

    def age(entry: "os.DirEntry[str]") -> int:
        with contextlib.suppress(FileNotFoundError):
            return entry.stat().st_mtime_ns
        return 0

    for entry in sorted(records, key=age)[: len(records) - RECORDS * 3 // 4]:
        Path(entry.path).unlink(missing_ok=True)
