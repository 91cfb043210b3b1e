"""Detection of opened files by the kernel, whatever system call or path opened them (inotify(7))."""

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
    """Watches files of one program for being opened."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths, self.marks = list(paths), dict[int, Path]()

    def __enter__(self) -> "Noticing":
        """Start watching; raise StepError if the machine's limit of watches is reached."""
        if self.paths:
            self.queue = queue_of(os.getpid())
            self.marks = {self.queue.add(path): path for path in self.paths}
        return self

    def __exit__(self, *error: object) -> None:
        if self.paths:
            self.queue.forget(self.marks)

    def opened(self) -> list[Path]:
        """Return the files that were opened so far."""
        return [self.marks[mark] for mark in self.queue.noticed(self.marks)] if self.paths else []


class Queue:
    """The inotify queue of a process; there is one per process because the number per user is limited."""

    def __init__(self) -> None:
        self.libc, self.lock, self.seen = ctypes.CDLL(None, use_errno=True), threading.Lock(), set[int]()
        self.handle = self._done(self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: Path) -> int:
        """Watch a file until it is opened; return its watch descriptor."""
        with self.lock:
            return self._done(self.libc.inotify_add_watch(self.handle, os.fsencode(path), ctypes.c_uint(OPENED | ONCE)))

    def noticed(self, marks: Iterable[int]) -> set[int]:
        """Return those of the watch descriptors whose files were opened."""
        with self.lock:
            self._read()
            return self.seen & set(marks)

    def forget(self, marks: Iterable[int]) -> None:
        """Remove watches."""
        with self.lock:
            for mark in marks:
                self.libc.inotify_rm_watch(self.handle, mark)
            self._read()
            self.seen -= set(marks)

    def _read(self) -> None:
        """Read all pending events; an event other than an opening means that a watch has ended."""
        while True:
            try:
                data = os.read(self.handle, 65536)
            except BlockingIOError:
                return
            place = 0
            while place < len(data):
                mark, what, _, length = struct.unpack_from(HEAD, data, place)
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
    """Return the queue of this process; a forked process gets its own."""
    return Queue()
