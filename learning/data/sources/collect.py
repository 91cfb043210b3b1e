"""The rows of all sources of a stage, written once with their places, then without rows whose id is there twice."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from learning.data.messages import make_batch
from learning.data.rows import SCHEMAS, Row
from learning.data.shards import ShardWriter, find_shards, scan_shards
from learning.data.sources.dropped import DroppedRows
from learning.data.sources.records import Record
from learning.data.sources.source_rows import SourceRows
from schemas.stages.data import Emit

PIECE = 1024
"""Rows that become Arrow together."""
MEMORY = "512MiB"
"""Memory of DuckDB while it looks for ids that are there twice; beyond it, DuckDB spills to disk."""
PLACES = [pa.field("file", pa.string()), pa.field("number", pa.int64()), pa.field("read", pa.int64())]
"""Columns of the rows on disk beside their own: file, number in the file, and number among all rows."""


def write_converted(sources: Sequence[SourceRows], emit: Emit, folder: Path, dropped: DroppedRows) -> None:
    """Write the rows of every source that fit into `folder`, with their places. Raise StepError for bad rows."""
    schema = pa.schema([*SCHEMAS[emit], *PLACES])
    with ShardWriter(folder, schema) as writer:
        before = 0
        for source in sources:
            for batch in _make_batches(source, dropped, before, schema):
                writer.write(batch)
            before += source.read
    dropped.stop()


def _make_batches(source: SourceRows, dropped: DroppedRows, before: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows: list[Row] = []
    for record, row in source.convert(dropped, before):
        rows.append(row | {"file": record.file, "number": record.number, "read": before + source.read - 1})
        if len(rows) == PIECE:
            yield make_batch(rows, schema)
            rows = []
    if rows:
        yield make_batch(rows, schema)


def find_repeated(folder: Path, spill: Path, num_threads: int) -> np.ndarray:
    """Return the numbers of rows in `folder` whose id an earlier row has, sorted."""
    files = [str(path) for path in find_shards(folder)]
    config = {"threads": num_threads, "memory_limit": MEMORY, "temp_directory": str(spill)}
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(":memory:", config={**config, **offline}) as connection:
        repeated = connection.execute(
            """with twice as (select id, min(read) as first from read_parquet($1) group by id having count(*) > 1)
            select read from read_parquet($1) join twice using (id) where read > first order by read""",
            [files],
        ).fetchnumpy()["read"]
    return np.asarray(repeated, np.int64)


def drop_repeated(folder: Path, repeated: np.ndarray, dropped: DroppedRows, sources: Sequence[SourceRows]) -> None:
    """Add the rows whose id is there twice to the dropped ones. Raise StepError where the source is to stop."""
    ends = np.cumsum([source.read for source in sources])
    for batch in scan_converted(folder, ["id", *(field.name for field in PLACES)], repeated, keep=False):
        for row in batch.to_pylist():
            source = sources[int(ends.searchsorted(row["read"], "right"))]
            record = Record(row["file"], row["number"], {"id": row["id"]})
            source.kept -= 1
            detail = f"id {row['id']!r} is that of an earlier row"
            dropped.add(record, row["read"], "duplicate id", detail, source.source.on_bad_row)
    dropped.stop()


def scan_converted(
    folder: Path, columns: Sequence[str], repeated: np.ndarray, *, keep: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows on disk without those whose number is among `repeated`, or with `keep=False` only those."""
    files = find_shards(folder)
    named = {field.name: field for schema in SCHEMAS.values() for field in schema} | {f.name: f for f in PLACES}
    wanted = pa.schema([named[name] for name in dict.fromkeys([*columns, "read"])])
    for batch in scan_shards(files, wanted, "converted"):
        chosen = np.isin(batch.column("read").to_numpy(), repeated, invert=keep)
        if chosen.any():
            yield batch.filter(pa.array(chosen)).select(list(columns))
