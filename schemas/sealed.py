"""Sealed checkpoints: a step reads back only bytes that an attempt of the same step wrote.

A seal is an HMAC-SHA256 over a label, which names the content and its place, and the bytes. While a step runs, the
HMAC's key is derived from the signing key and the step's key (`sealing_with`): without the signing key no one can make
a seal, and the seal of another step is not valid. Outside of a step the HMAC's key is empty, and a seal is a digest.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.atomic_write import atomic_file

_keys = [b""]


class NotSealed(ValueError):
    """The bytes differ from those that were sealed."""


@contextmanager
def sealing_with(key: bytes) -> Iterator[None]:
    """Seal with a key inside the block; a process runs one step at a time."""
    _keys.append(key)
    try:
        yield
    finally:
        _keys.remove(key)


def compute_seal(label: str, content: bytes) -> str:
    """Return the seal of bytes, 64 hex digits."""
    text = label.encode()
    return hmac.new(_keys[-1], b"%d %s " % (len(text), text) + content, hashlib.sha256).hexdigest()


def is_sealed(label: str, content: bytes, seal: str) -> bool:
    """Return whether a seal is valid for the bytes."""
    return hmac.compare_digest(compute_seal(label, content).encode(), seal.encode())


def write_sealed(file: Path, label: str, value: Any) -> None:
    """Write a JSON value and its seal atomically."""
    body = json.dumps(value).encode()
    with atomic_file(file) as fresh:
        fresh.write_bytes(compute_seal(label, body).encode() + b"\n" + body)


def read_sealed(file: Path, label: str) -> Any:
    """Return the value in a file of `write_sealed`. Raise NotSealed, or OSError without a file."""
    seal, _, body = file.read_bytes().partition(b"\n")
    if not is_sealed(label, body, seal.decode(errors="replace")):
        raise NotSealed(f"{file.name} changed after it was written")
    return json.loads(body)


def file_digest(file: Path) -> str:
    """Return the sha256 of a file's bytes, 64 hex digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
