"""What a step prints, logs and warns goes to its log."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


@contextlib.contextmanager
def captured(log: Path, whole_process: bool) -> Iterator[None]:
    """Append stdout, stderr and warnings to `log`.

    With `whole_process` also what C code and children write; otherwise only what this thread writes, because others
    report on the same terminal.
    """
    logging.captureWarnings(True)
    with log.open("a", buffering=1, errors="replace") as stream, contextlib.ExitStack() as stack:
        stack.callback(logging.captureWarnings, False)
        if whole_process:
            stack.enter_context(_descriptors(stream.fileno()))
        out, err = (stream, stream) if whole_process else (OfThread(stream, sys.stdout), OfThread(stream, sys.stderr))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        yield


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
