"""What is done of a long list of rows, on disk as soon as it is done: a step that was killed asks only for the rest.

One JSON line per row, appended: name, value, tokens that were sampled for it, and the seal of all with the place of the
line, so that no line can be changed, moved or taken out. In memory lies only where each line begins. A line that a kill
cut off is dropped.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.errors import StepError
from schemas.sealed import compute_seal, is_sealed

SEALED = len(', "') + 64 + len('"]\n')
"""Bytes at the end of a line that hold its seal."""
FLUSH = 1.0
"""Seconds after which what was written is forced to the disk: a killed process loses nothing, a machine so much."""


def make_row_key(row: Mapping[str, Any]) -> str:
    """Return name of what is asked of a model with a row, 32 hex digits: the same for equal ids and prompts."""
    return hashlib.sha256(json.dumps([row["id"], row["prompt"]]).encode()).hexdigest()[:32]


class RowJournal:
    """Values by name, each written once. One process at a time has the file."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        self.name = file.name
        self.places: dict[str, int] = {}
        self.tokens = 0
        """Tokens that earlier attempts sampled for the rows that were there when it was opened."""
        self.end = self._found()
        os.ftruncate(self.handle, self.end)
        self.resumed = len(self.places)
        """Rows that were there when it was opened."""
        self.flushed = time.monotonic()

    def _found(self) -> int:
        """Note where every line begins that is as it was written; the number of bytes up to the first that is not."""
        end = 0
        with os.fdopen(os.dup(self.handle), "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # a kill cut it off
                read = self._read(line, end)
                if read is None:
                    print(f"{self.name}: line {number} is not as it was written; it and all after it are made again")
                    break
                self.places[read[0]] = end
                self.tokens += read[2]
                end += len(line)
        return end

    def _line(self, name: str, value: Any, tokens: int, place: int) -> bytes:
        body = json.dumps([name, value, tokens]).encode()
        return b'%s, "%s"]\n' % (body[:-1], self._seal(body, place))

    def _read(self, line: bytes, place: int) -> tuple[str, Any, int] | None:
        """Return name, value and tokens of a line; None when its seal does not fit."""
        body = line[:-SEALED] + b"]"
        if not is_sealed(self._label(place), body, line[3 - SEALED : -3].decode(errors="replace")):
            return None
        name, value, tokens = json.loads(body)
        return name, value, tokens

    def _seal(self, body: bytes, place: int) -> bytes:
        return compute_seal(self._label(place), body).encode()

    def _label(self, place: int) -> str:
        return f"journal {self.name} {place}"

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a name. Raises KeyError."""
        start, made = self.places[name], b""
        while not made.endswith(b"\n"):
            made += os.pread(self.handle, 1 << 14, start + len(made))
            made = made[: made.find(b"\n") + 1] or made
        if (read := self._read(made, start)) is None:
            raise StepError(f"{self.name}: was written to while the step used it; run again")
        return read[1]

    def add(self, done: Mapping[str, Any], tokens: Mapping[str, int] | None = None) -> None:
        """Write values of names that are not there, with the tokens that were sampled for each."""
        made, place = {}, self.end
        for name, value in done.items():
            made[name] = self._line(name, value, (tokens or {}).get(name, 0), place)
            place += len(made[name])
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
