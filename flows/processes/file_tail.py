"""Follow files that another process writes."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

from schemas.base import JsonObject


class FileTail:
    """New complete lines of a file since the last read; the file may appear late, be renamed, or be removed."""

    def __init__(self, path: Path, at_end: bool = False):
        self.path = path
        self.position = path.stat().st_size if at_end and path.exists() else 0
        self.stream: io.BufferedReader | None = None
        self.rest = b""

    def lines(self, moved_to: Path | None = None) -> Iterator[str]:
        """Yield complete lines; `moved_to` is where the file may be if it was never seen under its name."""
        if self.stream is None and (self._open(self.path) or (moved_to is not None and self._open(moved_to))):
            pass
        if self.stream is None:
            return
        *complete, self.rest = (self.rest + self.stream.read()).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace")

    def events(self) -> Iterator[JsonObject]:
        """Yield complete lines as JSON objects."""
        for line in self.lines():
            yield json.loads(line)

    def close(self) -> None:
        """Stop following."""
        if self.stream is not None:
            self.stream.close()

    def _open(self, path: Path) -> bool:
        try:
            self.stream = path.open("rb")
        except FileNotFoundError:
            return False
        self.stream.seek(self.position)
        return True
