"""The beginning of a GGUF file, read without any library: whether it is one, and how many tokens its model allows."""

import struct
from pathlib import Path
from typing import BinaryIO

MAGIC, SUFFIX = b"GGUF", b".context_length"
LFS = b"version https://git-lfs"
"""Begin of the file that stands for a large one that was not fetched."""
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` by type of value."""
TEXT, ARRAY = 8, 9
"""Types of texts and of arrays."""
LONGEST = 1 << 24
"""Most bytes of a text."""
MOST = 1000
"""Most values of an array that is skipped; vocabularies, which are longer, come after the sizes of the model."""


def find_gguf_problem(file: Path) -> str | None:
    """Return why a file is no GGUF file and what to do; None if it begins as one."""
    try:
        with file.open("rb") as handle:
            start = handle.read(len(LFS))
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    if start == LFS:
        return f"{file.name} is a pointer of Git LFS; fetch the weights: git lfs pull"
    return None if start.startswith(MAGIC) else f"{file.name} is no GGUF file, or cut off; fetch it again"


def read_context_length(file: Path) -> int | None:
    """Return the tokens that the model of a GGUF file allows; None where its first values do not say it."""
    try:
        with file.open("rb") as handle:
            if handle.read(len(MAGIC)) != MAGIC:
                return None
            _, _, count = _read(handle, "IQQ")
            for _ in range(count):
                name = handle.read(_read_size(handle))
                value = _read_value(handle, *_read(handle, "I"))
                if name.endswith(SUFFIX):
                    return int(value)
    except (OSError, ValueError, struct.error):
        pass
    return None


def _read_value(handle: BinaryIO, kind: int) -> float:
    """Return a number; texts and arrays are skipped. Raise ValueError for what has no end in sight."""
    if kind in NUMBERS:
        return _read(handle, NUMBERS[kind])[0]
    if kind == TEXT:
        handle.seek(_read_size(handle), 1)
    elif kind == ARRAY:
        inner, count = _read(handle, "IQ")
        if count > MOST or inner == ARRAY:
            raise ValueError("a long array")
        for _ in range(count):
            _read_value(handle, inner)
    else:
        raise ValueError("no type of GGUF")
    return 0


def _read(handle: BinaryIO, kinds: str) -> tuple[int, ...]:
    return struct.unpack(f"<{kinds}", handle.read(struct.calcsize(f"<{kinds}")))


def _read_size(handle: BinaryIO) -> int:
    (size,) = _read(handle, "Q")
    if size > LONGEST:
        raise ValueError("a text of more than 16 MB")
    return size
