"""The beginning of a GGUF file, read without any library: whether it is one, and how many tokens its model allows."""

import mmap
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
DEEPEST = 4
"""Most arrays inside each other."""
LONGEST = 1 << 24
"""Most bytes of a text."""
ALIGNMENT = 32
"""Bytes to a multiple of which the data begin, unless the header says another number."""
MOST = 1000
"""Most values of an array that is skipped, and bytes of a text that is kept; vocabularies, which are longer, come after
the sizes of the model."""


def find_gguf_problem(file: Path) -> str | None:
    """Return why a file is no GGUF file and what to do; None if it begins as one."""
    try:
        with file.open("rb") as handle:
            start = handle.read(len(LFS))
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    if start == LFS:
        return f"{file.name} is a pointer of Git LFS; fetch the weights: git lfs pull"
    if not start.startswith(MAGIC):
        return f"{file.name} is no GGUF file, or cut off; fetch it again"
    size = file.stat().st_size
    try:
        last = _find_last_tensor(file)
    except (ValueError, OverflowError, struct.error):
        return f"{file.name} is damaged or cut off: its header cannot be read; fetch it again"
    return (
        f"{file.name} is cut off: {size:,} bytes, and a tensor begins at {last:,}; fetch it again"
        if last >= size
        else None
    )


def _find_last_tensor(file: Path) -> int:
    """Return where the data of the last tensor begin; 0 without tensors.

    Raise ValueError, OverflowError or struct.error for a header that cannot be read.
    """
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
        values, tensors, at = _walk(content)
    alignment = int(values.get("general.alignment", ALIGNMENT))
    last = max((offset for _, offset in tensors.values()), default=0)
    return -(-at // alignment) * alignment + last if tensors else 0


def read_gguf_tensors(file: Path) -> tuple[dict[str, int | float | str], dict[str, tuple[int, ...]]]:
    """Return the numbers and short texts of a GGUF file's header, and the sides of its tensors, innermost first.

    Raise OSError, ValueError, OverflowError or struct.error for a header that cannot be read.
    """
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
        values, tensors, _ = _walk(content)
    return values, {name: sides for name, (sides, _) in tensors.items()}


def _walk(
    content: mmap.mmap,
) -> tuple[dict[str, int | float | str], dict[str, tuple[tuple[int, ...], int]], int]:
    """Return numbers and short texts, sides and offset of every tensor, and the end of a header."""
    _, count_tensors, count = struct.unpack_from("<IQQ", content, len(MAGIC))
    at, values, tensors = len(MAGIC) + struct.calcsize("<IQQ"), {}, {}
    for _ in range(count):
        name, at = _read_text(content, at)
        kind = struct.unpack_from("<I", content, at)[0]
        at += 4
        if kind in NUMBERS:
            values[name] = struct.unpack_from(f"<{NUMBERS[kind]}", content, at)[0]
        elif kind == TEXT and struct.unpack_from("<Q", content, at)[0] < MOST:
            values[name] = _read_text(content, at)[0]
        at = _skip_value(content, at, kind)
    for _ in range(count_tensors):
        name, at = _read_text(content, at)
        rank = struct.unpack_from("<I", content, at)[0]
        sides = struct.unpack_from(f"<{rank}Q", content, at + 4) if rank <= DEEPEST else ()
        at += 4 + 8 * rank
        tensors[name] = sides, struct.unpack_from("<Q", content, at + 4)[0]
        at += 12
    return values, tensors, at


def _read_text(content: mmap.mmap, at: int) -> tuple[str, int]:
    """Return a text of the header, and where it ends."""
    size = struct.unpack_from("<Q", content, at)[0]
    return content[at + 8 : at + 8 + size].decode(errors="replace"), at + 8 + size


def _skip_value(content: mmap.mmap, at: int, kind: int, depth: int = 0) -> int:
    """Return where a value of the header ends."""
    if kind in NUMBERS:
        return at + struct.calcsize(f"<{NUMBERS[kind]}")
    if kind == TEXT:
        return at + 8 + struct.unpack_from("<Q", content, at)[0]
    if kind != ARRAY or depth > DEEPEST:
        raise ValueError("no type of GGUF")
    inner, count = struct.unpack_from("<IQ", content, at)
    at += 12
    if inner in NUMBERS:
        return at + count * struct.calcsize(f"<{NUMBERS[inner]}")
    for _ in range(count):
        at = _skip_value(content, at, inner, depth + 1)
    return at


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
