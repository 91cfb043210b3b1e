"""Rows that pass between stages: Parquet with a fixed Arrow schema per artifact type (`learning.data.shards` cuts it).

prompts           id, prompt, answer, family, metadata
chat              … and completion
preference_pairs  … and chosen, rejected, margin
step_labels       … and steps (a message each), labels (a number from 0 to 1 each)

`prompt`, `completion`, `chosen`, `rejected` and `steps` are lists of messages {role, content}, as in TRL's
conversational formats, with `tool_calls` and whatever else a template reads; `metadata` is JSON text of the generator
of the problem.
All types may have `tools` and `chat_template_kwargs` for the template of this row (`learning.data.messages`).
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from learning.data.messages import JSON_COLUMNS, MESSAGES, make_batch, make_optional_field, unpack_rows
from learning.data.shards import ShardWriter, check_shards, count_bytes, find_shards, scan_shards

TEXT = pa.string()
PROMPT = [("id", TEXT), ("prompt", MESSAGES), ("answer", TEXT), ("family", TEXT), ("metadata", TEXT)]
CHAT_COLUMNS = JSON_COLUMNS
"""Columns of a row that its chat template receives; a table may lack them."""
FOR_TEMPLATE = [make_optional_field(name) for name in CHAT_COLUMNS]
SOURCE = make_optional_field("source")
"""Name of the source that a row of a mixture came from."""
SCHEMAS: dict[str, pa.Schema] = {
    "prompts": pa.schema([*PROMPT, *FOR_TEMPLATE, SOURCE]),
    "chat": pa.schema([*PROMPT, ("completion", MESSAGES), *FOR_TEMPLATE, SOURCE]),
    "preference_pairs": pa.schema(
        [*PROMPT, ("chosen", MESSAGES), ("rejected", MESSAGES), ("margin", pa.float64()), *FOR_TEMPLATE, SOURCE]
    ),
    "step_labels": pa.schema([*PROMPT, ("steps", MESSAGES), ("labels", pa.list_(pa.float64())), *FOR_TEMPLATE, SOURCE]),
}
Row = dict[str, Any]
"""One row: the columns of its artifact type, and on the way through a stage those that functions add."""
IN_MEMORY = 64 << 20
"""Bytes of a table, before compression, up to which a loop holds its rows in memory."""


def write_rows(folder: Path, artifact_type: str, rows: list[Row]) -> None:
    """Write rows of an artifact type; equal rows give equal bytes."""
    write_table(folder, artifact_type, pa.Table.from_batches([make_batch(rows, SCHEMAS[artifact_type])]))


def write_table(folder: Path, artifact_type: str, table: pa.Table) -> None:
    """Write an Arrow table of an artifact type."""
    with open_row_writer(folder, artifact_type) as writer:
        writer.write(table)


def open_row_writer(folder: Path, artifact_type: str) -> ShardWriter:
    """Return what writes the rows of an artifact piece by piece."""
    return ShardWriter(folder, SCHEMAS[artifact_type])


def scan_rows(
    folder: Path, artifact_type: str, *, columns: Sequence[str] | None = None, start: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an artifact from row `start` on, as record batches, one in memory at a time.

    Raises StepError, before the first batch, when a column of any file is missing or of another type.
    """
    schema, paths = SCHEMAS[artifact_type], find_shards(folder)
    check_shards(paths, schema, artifact_type)
    wanted = pa.schema([schema.field(name) for name in columns or schema.names])
    yield from scan_shards(paths, wanted, artifact_type, start=start)


def count_rows(folder: Path, artifact_type: str) -> int:
    """Return rows of an artifact; raises StepError as `scan_rows` does."""
    return check_shards(find_shards(folder), SCHEMAS[artifact_type], artifact_type)


def count_missing(folder: Path, artifact_type: str, column: str) -> int:
    """Return rows of an artifact that have nothing in a column."""
    return sum(batch.column(0).null_count for batch in scan_rows(folder, artifact_type, columns=[column]))


def list_sources(folder: Path, artifact_type: str) -> list[str]:
    """Return the names of the sources that rows of an artifact came from, sorted; rows without one do not count."""
    names: set[str] = set()
    for batch in scan_rows(folder, artifact_type, columns=["source"]):
        names |= {str(name) for name in batch.column(0).unique().to_pylist() if name is not None}
    return sorted(names)


def fits_in_memory(folder: Path) -> bool:
    """Return whether a loop should hold the rows in memory; training is bit-identical either way."""
    return count_bytes(find_shards(folder)) <= IN_MEMORY


def read_table(folder: Path, artifact_type: str) -> pa.Table:
    """Read and check the rows of an artifact; raises StepError when a column is missing or of another type."""
    return pa.Table.from_batches(scan_rows(folder, artifact_type), schema=SCHEMAS[artifact_type])


def read_rows(folder: Path, artifact_type: str) -> list[Row]:
    """Read the rows of an artifact as dictionaries; for tables that fit into memory."""
    return [row for batch in scan_rows(folder, artifact_type) for row in unpack_rows(batch)]


@lru_cache(maxsize=8)
def read_cached_rows(folder: str, artifact_type: str) -> list[Row]:
    """Read the rows of an artifact once per process: an artifact never changes. Callers must not change them."""
    return read_rows(Path(folder), artifact_type)


def replace_half_characters(text: str) -> str:
    """Return the text with U+FFFD in the place of what is no character, as rows and servers take it."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_metadata(row: Row) -> Row:
    """Return the metadata of a row; empty if it is not a JSON object."""
    try:
        metadata = json.loads(row.get("metadata") or "{}")
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
