"""Sealed checkpoints of a killed step: only bytes that this very step wrote are read back.

A seal is an HMAC-SHA256 over a label, which says what the bytes are and where they belong, and the bytes. While a step
runs its key is made from the signing key and the step's key (`sealing_with`), so that who can write here without the
signing key can make no seal, and one of another step does not fit. Outside of a step the key is empty, and a seal is a
digest.
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
    """Bytes that are not those that were sealed."""


@contextmanager
def sealing_with(key: bytes) -> Iterator[None]:
    """Seal with a key inside; one step of a process at a time."""
    _keys.append(key)
    try:
        yield
    finally:
        _keys.remove(key)


def seal_of(label: str, content: bytes) -> str:
    """Return the seal of bytes, 64 hex digits."""
    text = label.encode()
    return hmac.new(_keys[-1], b"%d %s " % (len(text), text) + content, hashlib.sha256).hexdigest()


def is_sealed(label: str, content: bytes, seal: str) -> bool:
    """Return whether a seal is that of the bytes."""
    return hmac.compare_digest(seal_of(label, content).encode(), seal.encode())


def write_sealed(file: Path, label: str, value: Any) -> None:
    """Write a JSON value and its seal atomically."""
    body = json.dumps(value).encode()
    with atomic_file(file) as fresh:
        fresh.write_bytes(seal_of(label, body).encode() + b"\n" + body)


def read_sealed(file: Path, label: str) -> Any:
    """Return the value in a file of `write_sealed`. Raise NotSealed, and OSError when there is no file."""
    seal, _, body = file.read_bytes().partition(b"\n")
    if not is_sealed(label, body, seal.decode(errors="replace")):
        raise NotSealed(f"{file.name} is not as it was written")
    return json.loads(body)


def file_digest(file: Path) -> str:
    """Return the sha256 of a file's bytes, 64 hex digits."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
