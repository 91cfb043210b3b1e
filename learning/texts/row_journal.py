"""What is done of a long list of rows, on disk as soon as it is done: a step that was killed asks only for the rest.

One JSON line per row, appended; in memory lies only where each line begins. A line that a kill cut off is dropped.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH = 1.0
"""Seconds after which what was written is forced to the disk: a killed process loses nothing, a machine so much."""


def row_key(row: Mapping[str, Any]) -> str:
    """Name of what is asked of a model with a row, 32 hex digits: the same for equal ids and prompts."""
    return hashlib.sha256(json.dumps([row["id"], row["prompt"]]).encode()).hexdigest()[:32]


class RowJournal:
    """Values by name, each written once. One process at a time has the file."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        self.places: dict[str, int] = {}
        self.end = self._found()
        os.ftruncate(self.handle, self.end)
        self.resumed = len(self.places)
        """Rows that were there when it was opened."""
        self.flushed = time.monotonic()

    def _found(self) -> int:
        """Note where every whole line begins; the number of bytes that are whole."""
        end = 0
        with os.fdopen(os.dup(self.handle), "rb") as lines:
            for line in lines:
                try:
                    name = json.loads(line)[0] if line.endswith(b"\n") else None
                except (ValueError, LookupError, TypeError):
                    name = None
                if not isinstance(name, str):
                    break  # what follows a broken line was written by nobody
                self.places[name] = end
                end += len(line)
        return end

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, name: str) -> Any:
        """The value of a name. Raises KeyError."""
        start, made = self.places[name], b""
        while not made.endswith(b"\n"):
            made += os.pread(self.handle, 1 << 14, start + len(made))
            made = made[: made.find(b"\n") + 1] or made
        return json.loads(made)[1]

    def add(self, done: Mapping[str, Any]) -> None:
        """Write values of names that are not there."""
        made = {name: (json.dumps([name, value]) + "\n").encode() for name, value in done.items()}
        whole, start = b"".join(made.values()), self.end
        while start < self.end + len(whole):
            start += os.pwrite(self.handle, whole[start - self.end :], start)
        for name, line in made.items():
            self.places[name] = self.end
            self.end += len(line)
        if time.monotonic() - self.flushed >= FLUSH:
            self.flush()

    def flush(self) -> None:
        """Force everything to the disk."""
        os.fsync(self.handle)
        self.flushed = time.monotonic()

    def close(self) -> None:
        """Flush, and give the file back."""
        self.flush()
        os.close(self.handle)

    def __enter__(self) -> "RowJournal":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
