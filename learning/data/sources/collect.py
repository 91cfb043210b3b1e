"""The rows of all sources of a stage, written once with their places, then without rows whose id is there twice."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from learning.data.messages import make_batch, unpack_rows
from learning.data.rows import SCHEMAS, Row
from learning.data.shards import ShardWriter, find_shards, scan_shards
from learning.data.sources.dropped import DroppedRows
from learning.data.sources.records import Record
from learning.data.sources.shares import choose_index_type
from learning.data.sources.source_rows import SourceRows
from schemas.row_formats import Emit

PIECE = 1024
"""Rows that become Arrow together."""
MEMORY = "128MiB"
"""Memory of DuckDB while it looks for ids that are there twice; beyond it, DuckDB spills to disk."""
MOST_THREADS = 4
"""Threads that fit into that memory: each needs some 30 MB."""
PLACES = [pa.field("file", pa.string()), pa.field("number", pa.int64()), pa.field("read", pa.int64())]
"""Columns of the rows on disk beside their own: file, number in the file, and number among all rows."""
COPY = "#"
"""Stands between the id of a row and the number of its copy, for rows that a mixture repeats."""


def write_converted(
    sources: Sequence[SourceRows], names: Sequence[str], emit: Emit, folder: Path, dropped: DroppedRows
) -> None:
    """Write the rows of every source that fit into `folder`, with their places. Raise StepError for bad rows.

    Of several sources, rows have the name of theirs, which is also the beginning of their id.
    """
    schema = pa.schema([*SCHEMAS[emit], *PLACES])
    with ShardWriter(folder, schema) as writer:
        before = 0
        for source, name in zip(sources, names, strict=True):
            for batch in _make_batches(source, name if len(sources) > 1 else None, dropped, before, schema):
                writer.write(batch)
            before += source.read
    dropped.stop()


def _make_batches(
    source: SourceRows, name: str | None, dropped: DroppedRows, before: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    rows: list[Row] = []
    for record, row in source.convert(dropped, before):
        named = {} if name is None else {"id": f"{name}/{row['id']}", "source": name}
        rows.append(row | named | {"file": record.file, "number": record.number, "read": before + source.read - 1})
        if len(rows) == PIECE:
            yield make_batch(rows, schema)
            rows = []
    if rows:
        yield make_batch(rows, schema)


def find_repeated(folder: Path, spill: Path, num_threads: int) -> np.ndarray:
    """Return the numbers of rows in `folder` whose id an earlier row has, sorted."""
    files = [str(path) for path in find_shards(folder)]
    config = {"threads": min(num_threads, MOST_THREADS), "memory_limit": MEMORY, "temp_directory": str(spill)}
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(":memory:", config={**config, **offline}) as connection:
        repeated = connection.execute(
            """with twice as (select id, min(read) as first from read_parquet($1) group by id having count(*) > 1)
            select read from read_parquet($1) join twice using (id) where read > first order by read""",
            [files],
        ).fetchnumpy()["read"]
    return np.asarray(repeated, np.int64)


def drop_repeated(
    folder: Path, emit: Emit, repeated: np.ndarray, dropped: DroppedRows, sources: Sequence[SourceRows]
) -> None:
    """Add the rows whose id is there twice to the dropped ones. Raise StepError where the source is to stop.

    What is kept of them for correction is the row as it was converted.
    """
    ends = np.cumsum([source.read for source in sources])
    places = [field.name for field in PLACES]
    keeps = any(source.source.on_bad_row == "quarantine" for source in sources)
    for batch in _scan(folder, emit, [*(SCHEMAS[emit].names if keeps else ["id"]), *places]):
        for row in unpack_rows(batch.filter(pa.array(np.isin(batch.column("read").to_numpy(), repeated)))):
            source = sources[int(ends.searchsorted(row["read"], "right"))]
            content = {key: value for key, value in row.items() if value is not None and key not in places}
            record = Record(row["file"], row["number"], content)
            source.kept -= 1
            detail = f"id {row['id']!r} is that of an earlier row"
            dropped.add(record, row["read"], "duplicate id", detail, source.source.on_bad_row)
    dropped.stop()


def scan_chosen(folder: Path, emit: Emit, times: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Yield the rows on disk, each as often as `times` says by its number; the id of a copy ends with its number."""
    for batch in scan_converted(folder, emit):
        number = times[batch.column("read").to_numpy()]
        rows = batch.drop_columns(["read"])
        if (number == 1).all():
            yield rows
        elif number.any():
            places = np.repeat(np.arange(len(number)), number)
            copies = np.arange(len(places)) - np.repeat(np.cumsum(number) - number, number)
            taken = rows.take(pa.array(places))
            ids = [
                f"{name}{COPY}{copy + 1}" if copy else name
                for name, copy in zip(taken.column("id").to_pylist(), copies.tolist(), strict=True)
            ]
            yield taken.set_column(taken.schema.get_field_index("id"), "id", pa.array(ids, pa.string()))


def scan_converted(folder: Path, emit: Emit) -> Iterator[pa.RecordBatch]:
    """Yield the rows on disk, with their number as column `read`."""
    yield from _scan(folder, emit, [*SCHEMAS[emit].names, "read"])


def list_converted(folder: Path, emit: Emit, count: int, repeated: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows on disk, of `count` that were read, without the `repeated` ones, in order."""
    kind = choose_index_type(count)
    parts = [batch.column("read").to_numpy().astype(kind) for batch in _scan(folder, emit, ["read"])]
    numbers = np.concatenate(parts) if parts else np.empty(0, kind)
    return numbers[~np.isin(numbers, repeated)] if len(repeated) else numbers


def _scan(folder: Path, emit: Emit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([*SCHEMAS[emit], *PLACES])
    yield from scan_shards(find_shards(folder), pa.schema([schema.field(name) for name in columns]), "converted")
