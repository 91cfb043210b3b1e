"""What a step prints, logs and warns goes to its log."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from flows.planning.environment import hidden


@contextlib.contextmanager
def captured(log: Path, whole_process: bool, secrets: frozenset[str] = frozenset()) -> Iterator[None]:
    """Append stdout, stderr and warnings to `log`, with secrets blotted out.

    With `whole_process` also what C code and children write; otherwise only what this thread writes, because others
    report on the same terminal.
    """
    logging.captureWarnings(True)
    with log.open("a", buffering=1, errors="replace") as stream, contextlib.ExitStack() as stack:
        stack.callback(logging.captureWarnings, False)
        stack.callback(_blot_out, log, secrets)
        if whole_process:
            stack.enter_context(_descriptors(stream.fileno()))
        mine: Any = stream
        if secrets:
            mine = Hiding(stream, secrets)
            stack.callback(mine.end)
        out, err = (mine, mine) if whole_process else (OfThread(mine, sys.stdout), OfThread(mine, sys.stderr))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        yield


class Hiding:
    """A text stream into which no secret is written; what may be the beginning of one waits for what follows."""

    def __init__(self, stream: TextIO, secrets: frozenset[str]):
        self.stream, self.secrets, self.waiting = stream, secrets, ""

    def write(self, text: str) -> int:
        """Write a text without the secrets; returns the number of its characters."""
        told = hidden(self.waiting + text, self.secrets)
        kept = max(n for secret in self.secrets for n in range(len(secret)) if told.endswith(secret[:n]))
        self.waiting = told[len(told) - kept :]
        self.stream.write(told[: len(told) - kept])
        return len(text)

    def end(self) -> None:
        """Write what waits."""
        self.stream.write(self.waiting)
        self.waiting = ""

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's business."""
        return getattr(self.stream, name)


def _blot_out(log: Path, secrets: frozenset[str]) -> None:
    """Overwrite secrets that C code or children wrote; the log keeps its length, since others are reading it."""
    if not secrets:
        return
    content = log.read_bytes()
    with log.open("r+b") as file:
        for secret in sorted(map(str.encode, secrets), key=len, reverse=True):
            at = content.find(secret)
            while at >= 0:
                file.seek(at)
                file.write(b"*" * len(secret))
                at = content.find(secret, at + len(secret))


class OfThread:
    """A text stream for the thread that made it, another for all other threads."""

    def __init__(self, mine: TextIO, others: TextIO):
        self.mine, self.others, self.thread = mine, others, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        """Everything is asked of the stream of the thread that asks."""
        return getattr(self.mine if threading.get_ident() == self.thread else self.others, name)


@contextlib.contextmanager
def _descriptors(target: int) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(target, number)
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
