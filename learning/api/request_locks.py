"""Who is asking what just now, among all processes of a machine: a lock per question, which ends with its holder.

Linux keeps locks on ranges of a file for an open file; a question's place in the file is a part of its digest.
"""

import fcntl
import os
import struct
from pathlib import Path

FILE = "claims.lock"
DIGITS = 15
"""Hexadecimal digits of a digest that fit a place in a file."""
LAYOUT = "@hhqqi"
"""struct flock: kind, whence, start, length, process."""


class RequestLocks:
    """The locks of one round; `close` gives all of them back, as does the end of the process."""

    def __init__(self, folder: Path):
        self.file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, key: str) -> bool:
        """Whether the question is now one's own to ask; False: somebody else is asking it."""
        try:
            self._set(fcntl.F_WRLCK, key)
        except OSError:
            return False
        return True

    def give_back(self, key: str) -> None:
        """The question has ended."""
        self._set(fcntl.F_UNLCK, key)

    def close(self) -> None:
        """Give everything back."""
        os.close(self.file)

    def _set(self, kind: int, key: str) -> None:
        place = struct.pack(LAYOUT, kind, os.SEEK_SET, int(key[:DIGITS], 16), 1, 0)
        fcntl.fcntl(self.file, fcntl.F_OFD_SETLK, place)
