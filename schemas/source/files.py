"""Reads files that an author names: only regular and small ones, without waiting for a device or a pipe."""

import os
import stat
from itertools import islice
from pathlib import Path

from schemas.errors import RecipeError
from schemas.source.limits import MAX_BYTES
from schemas.source.tree import Mark, make_error
from schemas.suggestions import find_nearest

LISTED = 200
"""Files of a folder that are looked at for one of nearly the right name."""


def read_bytes(path: Path, name: str) -> bytes:
    """Return the content of a recipe's file; `name` is how errors call it. Raise RecipeError.

    The file is opened without blocking and looked at once it is open: a pipe, a device or a file that is exchanged in
    between is refused and not waited for, and a file that grows while it is read ends at the limit.
    """
    start = Mark(name, 1, 1)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise make_error(start, "", "no such file", _suggest_file(path)) from None
    except (OSError, ValueError) as error:
        raise _make_unreadable_error(start, error) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            message = "this is a folder" if stat.S_ISDIR(status.st_mode) else "this is not a regular file"
            raise make_error(start, "", message, "name the recipe's YAML file")
        data = _read_up_to(handle, MAX_BYTES + 1)
    except OSError as error:
        raise _make_unreadable_error(start, error) from None
    finally:
        os.close(handle)
    if len(data) > MAX_BYTES:
        message = f"{max(len(data), status.st_size) / 1e6:.1f} MB is too large for a recipe (1 MB)"
        raise make_error(start, "", message, "keep data in files of its own")
    return data


def _suggest_file(path: Path) -> str:
    """Return advice for a recipe that is not there: the nearest name beside it."""
    try:
        names = sorted(entry.name for entry in islice(path.parent.glob("*.y*ml"), LISTED))
    except (OSError, ValueError):
        names = []
    near = find_nearest(path.name, names) or find_nearest(f"{path.name}.yaml", names)
    return f"did you mean `{path.parent / near}`?" if near else "check the path, or `posttrain ls`"


def _read_up_to(handle: int, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := os.read(handle, count - len(data))):
        data += more
    return data


def read_text(path: Path, name: str) -> str:
    """Return the content as text. Raise RecipeError with the place of the first byte that is not UTF-8."""
    data = read_bytes(path, name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        mark = find_mark(before, len(before), Mark(name, 1, 1))
        advice = f"byte 0x{data[error.start]:02x} here; save the file as UTF-8"
        raise make_error(mark, "", "the file is not UTF-8", advice) from None


def find_mark(text: str, index: int, start: Mark) -> Mark:
    """Return the place of a character of a text."""
    line = text.count("\n", 0, index)
    return Mark(start.file, line + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


def _make_unreadable_error(start: Mark, error: Exception) -> RecipeError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return make_error(start, "", f"cannot be read: {reason}", "check the path and its permissions")
