"""Storage limit of a program: the kernel asks before the program opens a file for writing, and waits for the answer.

The program is paused while it waits, so that its storage is counted exactly: files in its folder, deleted files that it
still has open or mapped, and how much each writable file may still grow. The answer sets the maximum file size
(RLIMIT_FSIZE) such that all files together cannot exceed the limit. No check is needed between two openings.
"""

import errno
import fcntl
import os
import re
import resource
import select
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from learning.sandbox.filters import CREATES
from schemas.errors import StepError

MAX_BYTES, MAX_FILES, FILE_BYTES = 64 * 2**20, 256, 16 * 2**20
"""Limits: bytes of all files of a program, number of files, bytes of one file."""
MAX_OPENINGS = 10_000
"""Limit of openings for writing in a run: each takes time of the parent."""
BLOCK, INDEX = 4096, 16 * 4096
"""Bytes of a disk block, and of the metadata that a file system may need in addition to the blocks of one file."""
RECEIVE, SEND, WAITS, GO_ON = 0xC0502100, 0xC0182101, 0x40082102, 1
QUESTION, ANSWER, FLAGS_AT = 80, "=QqiI", 16 + 16 + 2 * 8
NAMELESS = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +(?!/dev/zero \(deleted\)$).* \(deleted\)$", re.MULTILINE)
"""A line of /proc/<pid>/maps for a deleted file. Shared memory without a file appears as /dev/zero."""

Inode = tuple[int, int]


@dataclass
class Storage:
    """Answers the openings of one program."""

    listener: int
    pid: int
    folder: Path
    openings: int = 0

    def answer(self) -> str:
        """Let a waiting opening continue and return an empty text, or return why the program must be ended."""
        question = bytearray(QUESTION)
        if not self._received(question):
            return ""
        self.openings += 1
        if self.openings > MAX_OPENINGS:
            return f"more than {MAX_OPENINGS} openings for writing"
        (creates,) = struct.unpack_from("=Q", question, FLAGS_AT)
        try:
            stored, nameless = self.stored()
        except PermissionError as error:
            if not self._control(WAITS, question[:8]):
                return ""
            raise StepError(f"the sandbox cannot count what a program stores: {error}; docs/sandbox.md") from error
        if not self._control(WAITS, question[:8]):  # a signal interrupted the call: the count may be out of date
            return ""
        most = may_grow_to(stored, nameless)
        if most < BLOCK or (creates & CREATES and len(stored) + nameless >= MAX_FILES):
            return f"more than {MAX_FILES} files or {MAX_BYTES // 2**20} MiB of them"
        with suppress(ProcessLookupError):
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most, FILE_BYTES))
        self._send(bytes(question[:8]))
        return ""

    def stored(self) -> tuple[dict[Inode, tuple[int, bool]], int]:
        """Return bytes of every file and whether it is open for writing, and the number of other mapped deleted files.

        The count is exact if the program is waiting; if it is not, concurrent changes raise no error. Raise
        PermissionError if this process may not inspect the program's descriptors.
        """
        sizes = {inode: (size, False) for inode, size in in_folder(self.folder)}
        maps = b""
        try:
            for status, writes in self._open_files():
                if stat.S_ISREG(status.st_mode) and (writes or not status.st_nlink):
                    inode = (status.st_dev, status.st_ino)
                    sizes[inode] = (size_of(status), writes or sizes.get(inode, (0, False))[1])
            maps = Path(f"/proc/{self.pid}/maps").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            pass
        removed = set(map(int, NAMELESS.findall(maps))) if b" (deleted)" in maps else set()
        return sizes, len(removed - {number for _, number in sizes})

    def _open_files(self) -> Iterator[tuple[os.stat_result, bool]]:
        """Yield the status of each file that the program has open, and whether it is open for writing."""
        handles = f"/proc/{self.pid}/fd"
        for name in os.listdir(handles):  # noqa: PTH208 - pathlib takes three times as long
            with suppress(FileNotFoundError):
                place = f"{handles}/{name}"
                yield os.stat(place), bool(os.lstat(place).st_mode & stat.S_IWUSR)  # noqa: PTH116

    def _received(self, question: bytearray) -> bool:
        """Read a pending request; return False if there is none any more."""
        waiting = select.poll()
        waiting.register(self.listener, select.POLLIN)
        if not any(what & select.POLLIN for _, what in waiting.poll(0)):
            return False
        return self._control(RECEIVE, question)

    def _send(self, of: bytes) -> None:
        """Let the waiting call continue."""
        (number,) = struct.unpack("=Q", of)
        self._control(SEND, bytearray(struct.pack(ANSWER, number, 0, 0, GO_ON)))

    def _control(self, request: int, about: bytearray) -> bool:
        try:
            fcntl.ioctl(self.listener, request, about)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the call was interrupted, or its process ended
                raise
            return False
        return True


def in_folder(folder: Path | str) -> Iterator[tuple[Inode, int]]:
    """Yield the files below a folder, each with its bytes on disk."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from in_folder(entry.path)
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield (status.st_dev, status.st_ino), size_of(status)


def size_of(status: os.stat_result) -> int:
    """Return the bytes that a file takes on disk, or may take if blocks are unwritten or sparse."""
    return max(status.st_size, status.st_blocks * 512)


def may_grow_to(stored: dict[Inode, tuple[int, bool]], nameless: int) -> int:
    """Return the size to which every file open for writing, and a new one, may grow within the limit of all files."""
    sizes = sorted(size for size, writes in stored.values() if writes)
    left = MAX_BYTES - sum(size for size, _ in stored.values())
    left -= nameless * (FILE_BYTES + INDEX) + (len(sizes) + 1) * INDEX
    level = 0
    for below, size in enumerate([*sizes, FILE_BYTES], start=1):
        rise = max(0, min(size - level, left // below))
        level, left = level + rise, left - rise * below
        if level < size:
            break
    return level // BLOCK * BLOCK
