"""Atomic writes: a reader sees the old content or the new, never a part of it, also after a crash."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(file: Path, *, flush: bool = True) -> Iterator[Path]:
    """Return a path beside `file` to write to: it becomes `file` by one rename, unless the block ends with an error.

    Folders above it are made. `flush`: its content is on the disk before that; without, what a power cut leaves may be
    a part of it. A process that is killed leaves a hidden file (`is_fragment`). Raise OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield fresh
        if flush:
            with fresh.open("rb") as stream:
                os.fsync(stream.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def write_text_atomically(file: Path, text: str) -> None:
    """Write a file of text. Raise OSError."""
    with atomic_file(file) as fresh:
        fresh.write_text(text)


def is_fragment(path: Path) -> bool:
    """Return whether a file is what somebody who was killed had begun to write."""
    return path.name.startswith(".") and path.suffix == ".tmp"
