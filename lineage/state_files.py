"""Reads files of the state folder without trust: garbage, wrong types, pipes or folders in place of files.

Verification reads everything through these functions: each thing that is wrong becomes one line, and it goes on.
"""

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.base import JsonObject


class Unreadable(Exception):
    """Why a file cannot be read, in words: `missing`, `a folder`, `Permission denied` ..."""


@dataclass(frozen=True)
class Lines:
    """The content of a file of JSON lines."""

    records: list[JsonObject]
    """The JSON objects, in order."""
    garbage: list[tuple[int, int]]
    """(line, first byte) of each line that is no JSON object; a last one without an end counts as cut off."""
    cut_off: bool
    """Whether the last line has no end: a kill or a full disk cut its writing off."""


LONGEST_RECORD = 1 << 28
"""Maximum bytes of a record of an artifact (manifest, seal, signature); a larger file is treated as missing."""


def read_record_file(path: Path) -> bytes | None:
    """Return the bytes of an artifact's record, or None if it is missing, too large, a link or no regular file.

    An artifact holds no links: one in the place of a record could lead out of the artifact.
    """
    try:
        return read_regular(path, follow_links=False, longest=LONGEST_RECORD)
    except Unreadable:
        return None


def read_regular(path: Path, *, follow_links: bool = True, longest: int | None = None) -> bytes:
    """Return the bytes of a regular file; never waits for a pipe or a device. Raise Unreadable."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        raise Unreadable("missing") from None
    except (OSError, ValueError) as error:
        raise Unreadable(getattr(error, "strerror", None) or "no path") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("a folder is in its place" if stat.S_ISDIR(status.st_mode) else "no regular file")
        if longest is not None and status.st_size > longest:
            raise Unreadable(f"larger than {longest} bytes")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read() if longest is None else stream.read(longest)
    except OSError as error:
        raise Unreadable(error.strerror or "cannot be read") from None
    finally:
        os.close(handle)


def parse_json(content: bytes) -> Any:
    """Return the JSON value of a text; raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_json_lines(content: bytes) -> Lines:
    """Return the objects of a text of JSON lines, and where invalid lines are."""
    *lines, last = content.split(b"\n")
    records, garbage, start = [], [], 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            record = _parse_object(line)
            if record is None:
                garbage.append((number, start))
            else:
                records.append(record)
        start += len(line) + 1
    return Lines(records, garbage, bool(last.strip()))


def read_json_lines(path: Path) -> list[JsonObject]:
    """Return the JSON objects among the lines of a file; empty if it cannot be read."""
    try:
        return parse_json_lines(read_regular(path)).records
    except Unreadable:
        return []


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False also for an invalid path."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 — Path.is_dir raises for names that are too long
    except (OSError, ValueError):
        return False


def sha256_of(content: bytes) -> str:
    """Return the sha256 in hex."""
    return hashlib.sha256(content).hexdigest()


def _parse_object(line: bytes) -> JsonObject | None:
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
