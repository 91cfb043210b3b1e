"""Watch a program from outside its process: output, messages, opened files, time."""

import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

from learning.sandbox.process import Started

MAX_OUTPUT = 64 * 1024
"""Limit of bytes for each of stdout and stderr; a program that writes more is ended."""
MAX_MESSAGE_BYTES, MAX_MESSAGES = 64 * 1024, 1000
"""Limits of the bytes of a message on descriptor 3 and of their number; a program that sends more is ended."""

Answer = Callable[[bytes], bytes | None]
"""A function from a message of a program to the answer; it runs in this process, so it must not trust the message and
must not raise."""


@dataclass(frozen=True)
class Ran:
    """The result of a program."""

    stdout: str
    stderr: str
    code: int
    """0: success; 1: an exception; negative: the signal that ended it."""
    timed_out: bool
    seconds: float
    """Wall time since the guards were installed."""
    reason: str = ""
    """Why the sandbox ended it; empty: it ended by itself."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the requested files that it left in its folder."""
    opened: frozenset[str] = frozenset()
    """Those of the watched files that it opened, by any means."""


def watch(of: Started, seconds: float, answer: Answer | None) -> Ran:
    """Collect output and answer messages until the process ends or exceeds a limit; return the result."""
    begun = time.monotonic()
    with Watching(of, answer) as watching:
        while watching.selector.get_map():
            left = math.inf if watching.ended or watching.reason else begun + seconds - time.monotonic()
            if left <= 0:
                watching.end(f"time: {seconds:g} seconds are over")
            else:
                watching.look(None if left == math.inf else left)
    texts = [bytes(part[:MAX_OUTPUT]).decode(errors="replace") for part in (watching.out, watching.err)]
    reason = watching.reason
    code, seconds_used = of.process.wait(), time.monotonic() - begun
    return Ran(texts[0], texts[1], code, reason.startswith("time"), seconds_used, reason)


class Watching:
    """The output of a program so far, and its event sources."""

    def __init__(self, of: Started, answer: Answer | None) -> None:
        self.of, self.answer = of, answer
        self.out, self.err = bytearray(), bytearray()
        self.reason, self.ended, self.messages = "", False, 0

    def __enter__(self) -> "Watching":
        """Register all event sources of the program."""
        self.over, self.selector = os.pidfd_open(self.of.process.pid), selectors.DefaultSelector()
        waiting = [
            (self.over, self._ended),
            (self.of.process.stdout, self._output),
            (self.of.process.stderr, self._output),
        ]
        waiting += [(self.of.storage.listener, self._opening)]
        waiting += [(self.of.channel, self._message)] if self.answer else []
        for handle, act in waiting:
            self.selector.register(handle, selectors.EVENT_READ, act)
        return self

    def __exit__(self, *error: object) -> None:
        self.selector.close()
        os.close(self.over)

    def look(self, longest: float | None) -> None:
        """Handle pending events, waiting at most `longest` seconds for the first."""
        for ready, _ in self.selector.select(longest):
            ready.data(ready.fileobj)

    def end(self, why: str) -> None:
        """End the program; the first reason is kept."""
        self.reason = self.reason or why
        self.of.process.kill()

    def _ended(self, over: int) -> None:
        self.ended = True
        self.selector.unregister(over)
        self.selector.unregister(self.of.storage.listener)

    def _output(self, pipe: IO[bytes]) -> None:
        output = self.out if pipe is self.of.process.stdout else self.err
        chunk = os.read(pipe.fileno(), 65536)
        output += chunk
        if not chunk:
            self.selector.unregister(pipe)
        elif len(output) > MAX_OUTPUT:
            self.end(f"more than {MAX_OUTPUT} bytes of output")

    def _opening(self, _: int) -> None:
        if not self.reason and (why := self.of.storage.answer()):
            self.end(why)

    def _message(self, channel: socket.socket) -> None:
        """Answer a message; stop listening after the last one, or if the program is being ended."""
        try:
            message = channel.recv(MAX_MESSAGE_BYTES + 1)
        except ConnectionResetError:  # raised once if it ended with unread answers; its messages follow
            return
        if not message or self.reason or not self.answer:
            self.selector.unregister(channel)
            return
        self.messages += 1
        if self.messages > MAX_MESSAGES or len(message) > MAX_MESSAGE_BYTES:
            self.end(f"more than {MAX_MESSAGES} messages, or one of more than {MAX_MESSAGE_BYTES} bytes")
        elif (reply := self.answer(message)) is not None:
            try:
                channel.send(reply)
            except BlockingIOError:
                self.end("it does not read the answers to its messages")
            except (BrokenPipeError, ConnectionResetError):  # it has ended; its earlier requests count
                return
