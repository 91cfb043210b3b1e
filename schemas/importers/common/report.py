"""What became of every key of an imported configuration."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from schemas.base import JsonObject

Status = Literal["mapped", "harmless", "default differs", "not supported", "unknown"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Entry:
    """One key of the input, or with `given: False` a default of the tool that a recipe has to state."""

    key: str
    value: Any
    status: Status
    note: str
    given: bool = True

    def to_json(self) -> JsonObject:
        """Return the entry as plain values."""
        return {"key": self.key, "value": self.value, "status": self.status, "note": self.note, "given": self.given}


def describe_counts(entries: Iterable[Entry]) -> str:
    """Return a line that counts the keys of the input by what became of them."""
    given = [entry for entry in entries if entry.given]
    counts = {status: sum(entry.status == status for entry in given) for status in STATUSES}
    parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{len(given)} {'key' if len(given) == 1 else 'keys'}: {parts or 'none'}"
