"""What a step prints, logs and warns goes to its log."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def captured(log: Path, whole_process: bool) -> Iterator[None]:
    """Append stdout, stderr and warnings to `log`; with `whole_process` also what C code and children write."""
    logging.captureWarnings(True)
    with log.open("a", buffering=1, errors="replace") as stream:
        try:
            with contextlib.ExitStack() as stack:
                if whole_process:
                    stack.enter_context(_descriptors(stream.fileno()))
                stack.enter_context(contextlib.redirect_stdout(stream))
                stack.enter_context(contextlib.redirect_stderr(stream))
                yield
        finally:
            logging.captureWarnings(False)


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
