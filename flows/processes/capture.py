"""Standard output and error of a process: captured in a step's log, or dropped when their reader is gone."""

import contextlib
import fcntl
import io
import json
import logging
import os
import select
import stat
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
TIMEOUT = 10.0
"""Seconds that the writers of a log have to end when their processes have."""


@contextlib.contextmanager
def capture_output(log: Path, whole_process: bool, secrets: frozenset[str] = frozenset()) -> Iterator[None]:
    """Append stdout, stderr and warnings to `log`, without secrets in any of their written forms.

    With `whole_process` also what C code and children write; otherwise only what this thread writes, since other
    threads report on the same terminal.
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
    """Wait until no process writes to a log, at most TIMEOUT seconds."""
    limit = time.monotonic() + TIMEOUT
    with log.open("rb") as file:
        while time.monotonic() < limit:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(LOOK)


class RedactedFile(io.RawIOBase):
    """A file that writes no secret; it has no descriptor, since writing to that would bypass it."""

    def __init__(self, handle: int, patterns: list[bytes]):
        self.handle, self.stream = handle, RedactingStream(patterns)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: Any) -> int:
        """Write bytes without the secrets; return how many bytes were accepted."""
        data = bytes(content)
        write_all(self.handle, self.stream.feed(data))
        return len(data)

    def close(self) -> None:
        """Write the rest of the content."""
        if not self.closed:
            write_all(self.handle, self.stream.end())
        super().close()


@contextlib.contextmanager
def _open_text(target: io.RawIOBase) -> Iterator[TextIO]:
    """Yield a text stream into a file, and leave the file open."""
    content = io.BufferedWriter(target)
    text = io.TextIOWrapper(content, encoding="utf-8", errors="replace", line_buffering=True)
    try:
        yield text
    finally:
        text.detach()
        content.detach()


@contextlib.contextmanager
def _start_log_writer(log: Path, patterns: list[bytes]) -> Iterator[Any]:
    """Yield a pipe to a process that writes the log; it drains the pipe even if this process is killed."""
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
            finally:  # a message, since closing is not enough: a process forked in between has the same end open
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
    saved = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in saved:
            os.dup2(target, number)
        yield
    finally:
        for number, copy in saved:
            os.dup2(copy, number)
            os.close(copy)


def survive_closed_output() -> None:
    """Redirect stdout and stderr to /dev/null as soon as their pipe has no reader.

    A flow run's output goes through its worker. Without this, the next log line after the worker's death would end the
    run.
    """
    pipes = [number for number in (1, 2) if stat.S_ISFIFO(os.fstat(number).st_mode)]
    if pipes:
        threading.Thread(target=_redirect_when_closed, args=(pipes,), name="reader", daemon=True).start()


def _redirect_when_closed(pipes: list[int]) -> None:
    while pipes:
        watched = select.poll()
        for number in pipes:
            watched.register(number, 0)  # errors, such as the loss of the reader, are always reported
        for number, _ in watched.poll():
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            pipes.remove(number)
