"""Locks on questions between all processes of a machine, released when the holder ends.

They are Linux locks on byte ranges of a file, bound to the open file; the offset is a part of the question's digest.
"""

import fcntl
import os
import struct
from pathlib import Path

FILE = "claims.lock"
DIGITS = 15
"""Hexadecimal digits of a digest that fit into a file offset."""
LAYOUT = "@hhqqi"
"""struct flock: kind, whence, start, length, process."""


class RequestLocks:
    """The locks of one batch; `close`, or the end of the process, releases all of them."""

    def __init__(self, folder: Path):
        self.file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, key: str) -> bool:
        """Lock a question; return False if another process holds it."""
        try:
            self._set(fcntl.F_WRLCK, key)
        except OSError:
            return False
        return True

    def give_back(self, key: str) -> None:
        """Release the lock of a question."""
        self._set(fcntl.F_UNLCK, key)

    def close(self) -> None:
        """Release all locks."""
        os.close(self.file)

    def _set(self, kind: int, key: str) -> None:
        place = struct.pack(LAYOUT, kind, os.SEEK_SET, int(key[:DIGITS], 16), 1, 0)
        fcntl.fcntl(self.file, fcntl.F_OFD_SETLK, place)
