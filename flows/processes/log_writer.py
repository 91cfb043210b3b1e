"""The process that writes the log of a step with secrets: what arrives by a pipe reaches the disk without them.

It is a process of its own, because code that holds the interpreter's lock may fill the pipe, and because what a step
wrote before it was killed is to be kept. It is started as a script, so it imports nothing of ours.
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
"""Pieces that are still read when the step has ended; what it left running may write for ever."""


class RedactingStream:
    """Bytes that come in pieces; what may be the beginning of a secret waits for what follows."""

    def __init__(self, patterns: Sequence[bytes]):
        self.patterns = sorted(set(patterns), key=len, reverse=True)
        self.found = re.compile(b"|".join(map(re.escape, self.patterns)))
        self.firsts = frozenset(pattern[0] for pattern in self.patterns)
        self.longest = len(self.patterns[0])
        self.waiting = b""

    def feed(self, data: bytes) -> bytes:
        """Take a piece; returns what may be written now."""
        content, said, at = self.waiting + data, [], 0
        held = self._held(content, at)
        while (secret := self.found.search(content, at)) and secret.start() < held:
            said += [content[at : secret.start()], STARS]
            at = secret.end()
            if at > held:
                held = self._held(content, at)
        self.waiting = content[held:]
        return b"".join([*said, content[at:held]])

    def end(self) -> bytes:
        """No piece follows: what waits."""
        rest, self.waiting = self.waiting, b""
        return self.found.sub(STARS, rest)

    def _held(self, content: bytes, start: int) -> int:
        """Where the longest end of the content begins that a secret may begin with."""
        for at in range(max(start, len(content) - self.longest + 1), len(content)):
            if content[at] in self.firsts:
                rest = content[at:]
                if any(len(pattern) > len(rest) and pattern.startswith(rest) for pattern in self.patterns):
                    return at
        return len(content)


def write_all(handle: int, content: bytes) -> None:
    """Write bytes to a file, all of them."""
    while content:
        content = content[os.write(handle, content) :]


def main(log: str, pipe: int) -> None:
    """Copy the pipe to the log until the standard input says anything more; its first line is the patterns."""
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
