"""Small files that are there whole or not at all, whoever reads or is killed meanwhile."""

import os
import secrets
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write a file by one rename after its content is on the disk; folders above it are made. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
