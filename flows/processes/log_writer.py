"""The process that writes the log of a step with secrets: it copies a pipe to the file without them.

It is a process of its own, because code that holds the interpreter's lock may fill the pipe, and because what a killed
step wrote before must be kept. It is started as a script, so it imports no module of this project.
"""

import contextlib
import fcntl
import json
import os
import re
import select
import sys
from collections.abc import Sequence

STARS = b"***"
AT_ONCE = 65536
LAST = 64
"""Pieces that are still read when the step has ended; processes that it left running may write without end."""


class RedactingStream:
    """Removes secrets from bytes that arrive in pieces; a possible beginning of a secret is held back."""

    def __init__(self, patterns: Sequence[bytes]):
        self.patterns = sorted(set(patterns), key=len, reverse=True)
        self.pattern = re.compile(b"|".join(map(re.escape, self.patterns)))
        self.firsts = frozenset(pattern[0] for pattern in self.patterns)
        self.longest = len(self.patterns[0])
        self.waiting = b""

    def feed(self, data: bytes) -> bytes:
        """Take a piece; return what may be written now."""
        content, written, at = self.waiting + data, [], 0
        certain = self._find_certain_end(content, at)
        while (secret := self.pattern.search(content, at)) and secret.start() < certain:
            written += [content[at : secret.start()], STARS]
            at = secret.end()
            if at > certain:
                certain = self._find_certain_end(content, at)
        self.waiting = content[certain:]
        return b"".join([*written, content[at:certain]])

    def end(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        rest, self.waiting = self.waiting, b""
        return self.pattern.sub(STARS, rest)

    def _find_certain_end(self, content: bytes, start: int) -> int:
        """Return where the longest possible beginning of a secret starts at the end of the content."""
        for at in range(max(start, len(content) - self.longest + 1), len(content)):
            if content[at] in self.firsts:
                rest = content[at:]
                if any(len(pattern) > len(rest) and pattern.startswith(rest) for pattern in self.patterns):
                    return at
        return len(content)


def write_all(handle: int, content: bytes) -> None:
    """Write all bytes to a file descriptor."""
    while content:
        content = content[os.write(handle, content) :]


def main(log: str, pipe: int) -> None:
    """Copy the pipe to the log until standard input has a second line; its first line holds the patterns."""
    control = os.fdopen(0, "rb", buffering=0)
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (part := control.read(1)):
            return
        line += part
    stream = RedactingStream([bytes.fromhex(pattern) for pattern in json.loads(line)])
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)
    fcntl.flock(handle, fcntl.LOCK_SH)  # until this process has ended: see `capture.wait_for_writers`
    os.write(1, b"\n")
    os.set_blocking(pipe, False)
    open_end, over, left = True, False, LAST
    while open_end and not over and left:
        over = control in select.select([pipe, control], [], [])[0]
        with contextlib.suppress(BlockingIOError):
            while (open_end := bool(content := os.read(pipe, AT_ONCE))) and left:
                write_all(handle, stream.feed(content))
                left -= over
    write_all(handle, stream.end())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
