"""One row of a file before conversion, and what is wrong with it."""

from dataclasses import dataclass, field
from typing import Any

LONGEST_ROW = 64 << 20
"""Bytes of a row, at most."""


class BadRow(Exception):
    """A row does not fit; the message is the reason."""


@dataclass(slots=True)
class Record:
    """A row of a file: its values by column, or the reason why it cannot be read."""

    file: str
    """Path below the input."""
    number: int
    """Number of the row in its file, from 1: the line for JSONL."""
    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why the row cannot be read; empty if it can."""
    text: str = ""
    """What is written in the file, for a row that cannot be read."""

    @property
    def place(self) -> str:
        """Return file and row, for messages."""
        return f"{self.file}, row {self.number}"
