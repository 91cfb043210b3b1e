"""A look at a source before anything runs: its files, its format, its number of rows, and the first rows converted."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from learning.data.messages import PLAIN
from learning.data.rows import Row
from learning.data.shards import open_shard
from learning.data.sources.files import get_data_suffix, is_absent
from learning.data.sources.records import BadRow
from learning.data.sources.source_rows import LOOKED_AT, SourceRows
from schemas.errors import StepError
from schemas.row_formats import Emit
from schemas.stages.data import Source

CHEAP = 64 << 20
"""Bytes of files up to which lines are counted."""
CHECKED, SMALL = 10_000, 16 << 20
"""Rows that are converted, of files of at most so many bytes together; of larger ones, those that decide the format."""
COUNTED_BY_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Look:
    """What is known of a source without reading all of it."""

    format: str
    files: int
    size: int
    """Bytes of all files."""
    rows: int | None
    """Rows of all files; None where counting them would take long."""
    examples: tuple[Row, ...]
    bad: tuple[str, ...]
    """File, row and reason of the rows that do not fit among the first."""


def look_at_source(
    folder: Path, source: Source, emit: Emit, examples: int = 0, tables: Mapping[str, Path] | None = None
) -> Look:
    """Return what the first rows of a source show; `tables` are the folders of the others that a query reads.

    Raise StepError if it cannot be read, or no format fits.
    """
    rows = SourceRows(folder, source, emit, tables or {})
    present = [path for path in rows.files if not is_absent(path)]
    size = sum(path.stat().st_size for path in present)
    first = LOOKED_AT if source.query or size > SMALL else CHECKED
    converted: list[Row] = []
    bad: list[str] = []
    ids: set[str] = set()
    for record in islice(rows.rows(), max(first, examples)):
        try:
            if record.problem:
                raise BadRow(record.problem)
            row = rows.convert_record(record)
            if row["id"] in ids:
                raise BadRow(f"id {row['id']!r} is that of an earlier row")
            ids.add(row["id"])
            if len(converted) < examples:
                converted.append(row)
        except BadRow as error:
            bad.append(f"{record.place}: {error}")
    if not ids and not bad:
        raise StepError(f"{'query' if source.query else rows.files[0].name}: no rows")
    number = None if source.query else _count_rows(rows, present, size)
    return Look(rows.format, len(rows.files), size, number, (*converted,), (*bad,))


def read_first_rows(
    folder: Path, source: Source, emit: Emit, size: int, tables: Mapping[str, Path] | None = None
) -> Iterator[Row]:
    """Yield those of the first `size` rows of a source that fit. Raise StepError if it cannot be read."""
    rows = SourceRows(folder, source, emit, tables or {})
    for record in islice(rows.rows(), size):
        with suppress(BadRow):
            if not record.problem:
                yield rows.convert_record(record)


def _count_rows(rows: SourceRows, present: list[Path], size: int) -> int | None:
    """Return the rows of a source; None if some of its files are not here, or counting would take long."""
    number = _count_all(present, size) if len(present) == len(rows.files) else None
    if number is None:
        return None
    start, stop = rows.find_bounds()
    return max(0, min(number, number if stop is None else stop) - start)


def _count_all(files: list[Path], size: int) -> int | None:
    suffixes = {path.suffix.lower() for path in files}
    if suffixes == {".parquet"}:
        total = 0
        for path in files:
            with open_shard(path) as file:
                total += file.metadata.num_rows
        return total
    if suffixes <= set(COUNTED_BY_LINES) and size <= CHEAP:
        return sum(1 for path in files for line in path.read_bytes().splitlines() if line.strip())
    if {get_data_suffix(path) for path in files} <= {".txt", ".md"}:
        return len(files)
    return None


def describe_row(row: Row) -> Iterator[str]:
    """Yield the lines of a converted row: one per message, with what is learned last."""
    yield f"{row['id']}"
    labels = iter(row.get("labels") or ())
    for name in ("prompt", "completion", "chosen", "rejected", "steps"):
        for message in row.get(name) or ():
            if name == "steps":
                yield f"  step {next(labels):g}: {message['content']}"
                continue
            more = {key: value for key, value in message.items() if key not in ("role", "content")}
            role = "text" if message["role"] == PLAIN else message["role"]
            yield f"  {name} {role}: {message.get('content') or ''}" + (f" {more}" if more else "")
