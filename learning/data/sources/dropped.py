"""The rows of a source that do not fit: counted, reported with file, row and reason, and kept aside where asked."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

import pyarrow as pa

from learning.data.shards import ShardWriter
from learning.data.sources.records import Record
from schemas.errors import StepError

Reason = Literal["unreadable", "does not fit", "duplicate id"]
OnBadRow = Literal["stop", "drop", "quarantine"]
REASONS: tuple[Reason, ...] = ("unreadable", "does not fit", "duplicate id")
LEDGER = pa.schema([("row", pa.int64()), ("id", pa.string()), ("reason", pa.string()), ("detail", pa.string())])
SHOWN = 20
"""Bad rows after which a step with `on_bad_row: stop` stops."""
PIECE = 1024
"""Rows of the ledger that are written together."""


@dataclass
class DroppedRows:
    """Writes `dropped.parquet` (place, reason and detail of each dropped row) and `quarantine.jsonl` (its content)."""

    folder: Path
    counts: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    _waiting: list[dict[str, Any]] = field(default_factory=list)
    _stopping: list[str] = field(default_factory=list)
    _quarantine: TextIO | None = None

    def __enter__(self) -> "DroppedRows":
        self._ledger = ShardWriter(self.folder, LEDGER, "dropped", whole=True)
        self._ledger.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._ledger.__exit__(kind, error, trace)
        if self._quarantine is not None:
            self._quarantine.close()

    def add(self, record: Record, number: int, reason: Reason, detail: str, on_bad_row: OnBadRow) -> None:
        """Count a row, the `number`-th of all; raise StepError with the first ones if the step is to stop."""
        if on_bad_row == "stop":
            self._stopping.append(f"{record.place}: {detail}")
            if len(self._stopping) == SHOWN:
                self.stop("the first of them; ")
            return
        self.counts[reason] += 1
        self._waiting.append({"row": number, "id": record.place, "reason": reason, "detail": detail})
        if len(self._waiting) == PIECE:
            self._flush()
        if on_bad_row == "quarantine":
            self._keep(record, detail)

    def stop(self, more: str = "") -> None:
        """Raise StepError if a row was added with `on_bad_row: stop`."""
        if self._stopping:
            lines = "".join(f"\n    {line}" for line in self._stopping)
            count = len(self._stopping)
            raise StepError(
                f"data: {count} row{'s do' if count > 1 else ' does'} not fit ({more}`on_bad_row: drop` or "
                f"`quarantine` leaves them out):{lines}"
            )

    def _keep(self, record: Record, detail: str) -> None:
        if self._quarantine is None:
            self._quarantine = (self.folder / "quarantine.jsonl").open("w", encoding="utf-8")
        content = record.values or record.text
        line = {"file": record.file, "row": record.number, "reason": detail, "content": content}
        self._quarantine.write(json.dumps(line, default=str) + "\n")

    def _flush(self) -> None:
        if self._waiting:
            self._ledger.write(pa.RecordBatch.from_pylist(self._waiting, schema=LEDGER))
            self._waiting = []
