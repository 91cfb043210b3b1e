"""Atomic writes: a reader sees the old content or the new, never a part of it, also after a crash."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(file: Path, *, flush: bool = True) -> Iterator[Path]:
    """Yield a path in the folder of `file`, which is renamed to `file` unless the block ends with an error.

    Missing folders are created. With `flush`, the content is on the disk before the rename; without, a power cut may
    leave a part of it. A killed process leaves a hidden file (`is_fragment`). Raise OSError.
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


def flush_path(path: Path) -> None:
    """Flush one file or folder to the disk; file systems that cannot flush a folder are left alone."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def is_fragment(path: Path) -> bool:
    """Return whether a file is the unfinished write of a killed process."""
    return path.name.startswith(".") and path.suffix == ".tmp"
