"""Whether a file was opened, in whatever way and under whatever name, as the kernel says it (inotify(7))."""

import ctypes
import os
import struct
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from schemas.errors import StepError

OPENED, ONCE = 0x20, 0x80000000
HEAD = "=iIII"


class Noticing:
    """Files of one program, watched from now on."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths, self.marks = list(paths), dict[int, Path]()

    def __enter__(self) -> "Noticing":
        """Watch. Raises StepError where the machine allows no more of it."""
        if self.paths:
            self.queue = queue_of(os.getpid())
            self.marks = {self.queue.add(path): path for path in self.paths}
        return self

    def __exit__(self, *error: object) -> None:
        if self.paths:
            self.queue.forget(self.marks)

    def opened(self) -> list[Path]:
        """Those that were opened so far."""
        return [self.marks[mark] for mark in self.queue.noticed(self.marks)] if self.paths else []


class Queue:
    """The one queue of a process, since a user may have few."""

    def __init__(self) -> None:
        self.libc, self.lock, self.seen = ctypes.CDLL(None, use_errno=True), threading.Lock(), set[int]()
        self.handle = self._done(self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: Path) -> int:
        """Watch a file until it is opened; its mark."""
        with self.lock:
            return self._done(self.libc.inotify_add_watch(self.handle, os.fsencode(path), ctypes.c_uint(OPENED | ONCE)))

    def noticed(self, marks: Iterable[int]) -> set[int]:
        """Those of the marks whose files were opened."""
        with self.lock:
            self._read()
            return self.seen & set(marks)

    def forget(self, marks: Iterable[int]) -> None:
        """Watch no longer."""
        with self.lock:
            for mark in marks:
                self.libc.inotify_rm_watch(self.handle, mark)
            self._read()
            self.seen -= set(marks)

    def _read(self) -> None:
        """Take what has come; what is no opening says that a watch has ended."""
        while True:
            try:
                found = os.read(self.handle, 65536)
            except BlockingIOError:
                return
            place = 0
            while place < len(found):
                mark, what, _, length = struct.unpack_from(HEAD, found, place)
                place += struct.calcsize(HEAD) + length
                if what & OPENED:
                    self.seen.add(mark)

    def _done(self, result: int) -> int:
        if result < 0:
            why = os.strerror(ctypes.get_errno())
            raise StepError(f"the sandbox cannot notice what a program opens: {why}; see fs.inotify in sysctl")
        return result


@cache
def queue_of(process: int) -> Queue:
    """The queue of this process; one that was forked has its own."""
    return Queue()
