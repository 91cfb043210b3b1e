"""What a step prints, logs and warns goes to its log."""

import contextlib
import fcntl
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from flows.processes import log_writer
from flows.processes.log_writer import RedactingStream, write_all
from flows.processes.redaction import make_redactor

LOOK = 0.01
"""Seconds between looks whether a log is written to."""
PATIENCE = 10.0
"""Seconds that the writers of a log have to end when their processes have."""


@contextlib.contextmanager
def capture_output(log: Path, whole_process: bool, secrets: frozenset[str] = frozenset()) -> Iterator[None]:
    """Append stdout, stderr and warnings to `log`; no secret reaches the file, however it is written down.

    With `whole_process` also what C code and children write; otherwise only what this thread writes, because others
    report on the same terminal.
    """
    patterns = make_redactor(secrets).patterns
    logging.captureWarnings(True)
    with log.open("ab", buffering=0) as file, contextlib.ExitStack() as stack:
        stack.callback(logging.captureWarnings, False)
        target: Any = file
        if whole_process:
            if patterns:
                target = stack.enter_context(_start_log_writer(log, patterns))
            stack.enter_context(_redirect_descriptors(target.fileno()))
        elif patterns:
            target = stack.enter_context(RedactedFile(file.fileno(), patterns))
        log_stream = stack.enter_context(_open_text(target))
        out = log_stream if whole_process else make_thread_stream(log_stream, sys.stdout)
        err = log_stream if whole_process else make_thread_stream(log_stream, sys.stderr)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        yield


def wait_for_writers(log: Path) -> None:
    """Return when no process writes to a log any more, at the latest after PATIENCE seconds."""
    limit = time.monotonic() + PATIENCE
    with log.open("rb") as file:
        while time.monotonic() < limit:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(LOOK)


class RedactedFile(io.RawIOBase):
    """A file into which no secret is written; it has no descriptor, since that would lead past it."""

    def __init__(self, handle: int, patterns: list[bytes]):
        self.handle, self.stream = handle, RedactingStream(patterns)

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, content: Any) -> int:
        """Write bytes without the secrets; returns how many were taken."""
        taken = bytes(content)
        write_all(self.handle, self.stream.feed(taken))
        return len(taken)

    def close(self) -> None:
        """Write what waits."""
        if not self.closed:
            write_all(self.handle, self.stream.end())
        super().close()


@contextlib.contextmanager
def _open_text(target: io.RawIOBase) -> Iterator[TextIO]:
    """A text stream into a file that stays open after it."""
    content = io.BufferedWriter(target)
    text = io.TextIOWrapper(content, encoding="utf-8", errors="replace", line_buffering=True)
    try:
        yield text
    finally:
        text.detach()
        content.detach()


@contextlib.contextmanager
def _start_log_writer(log: Path, patterns: list[bytes]) -> Iterator[Any]:
    """A pipe to a process that writes the log; it goes on to the end of the pipe when this process is killed."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", log_writer.__file__, str(log.absolute()), str(reading)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                pass_fds=(reading,),
                start_new_session=True,
            )
        finally:
            os.close(reading)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([pattern.hex() for pattern in patterns]).encode() + b"\n")
            process.stdin.flush()
            process.stdout.readline()
            try:
                yield pipe
            finally:  # said, not only closed: a process that was forked meanwhile holds the same end
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(b"over\n")
                    process.stdin.flush()


def make_thread_stream(mine: TextIO, others: TextIO) -> TextIO:
    """Return a stream that is `mine` for the calling thread, and `others` for all other threads."""
    return cast(TextIO, ThreadStream(mine, others))


class ThreadStream:
    """A text stream for the thread that made it, another for all other threads; it has the attributes of either."""

    def __init__(self, mine: TextIO, others: TextIO):
        self.mine, self.others, self.thread = mine, others, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the stream of the calling thread."""
        return getattr(self.mine if threading.get_ident() == self.thread else self.others, name)


@contextlib.contextmanager
def _redirect_descriptors(target: int) -> Iterator[None]:
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
