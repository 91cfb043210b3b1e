"""Rows that pass between stages: one Parquet file per artifact, with a fixed Arrow schema per artifact type.

prompts           id, prompt, answer, family, metadata
chat              … and completion
preference_pairs  … and chosen, rejected, margin

`prompt`, `completion`, `chosen` and `rejected` are lists of messages {role, content}, as in TRL's conversational
formats; `metadata` is JSON text that belongs to whoever generated the problem.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import StepError

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
TEXT = pa.string()
PROMPT = [("id", TEXT), ("prompt", MESSAGES), ("answer", TEXT), ("family", TEXT), ("metadata", TEXT)]
SCHEMAS: dict[str, pa.Schema] = {
    "prompts": pa.schema(PROMPT),
    "chat": pa.schema([*PROMPT, ("completion", MESSAGES)]),
    "preference_pairs": pa.schema([*PROMPT, ("chosen", MESSAGES), ("rejected", MESSAGES), ("margin", pa.float64())]),
}
FILE = "rows.parquet"


def write_rows(folder: Path, artifact_type: str, rows: list[dict[str, Any]]) -> None:
    """Write rows of an artifact type; equal rows give equal bytes."""
    write_table(folder, artifact_type, pa.Table.from_pylist(rows, schema=SCHEMAS[artifact_type]))


def write_table(folder: Path, artifact_type: str, table: pa.Table) -> None:
    """Write an Arrow table of an artifact type."""
    pq.write_table(table.cast(SCHEMAS[artifact_type]), folder / FILE, compression="zstd")


def read_table(folder: Path, artifact_type: str) -> pa.Table:
    """Read and check the rows of an artifact; raises StepError when a column is missing or of another type."""
    table = pq.read_table(folder / FILE)
    wanted = SCHEMAS[artifact_type]
    missing = [name for name in wanted.names if name not in table.column_names]
    if missing:
        raise StepError(f"{folder / FILE}: not {artifact_type} rows, column(s) {', '.join(missing)} missing")
    try:
        return table.select(wanted.names).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StepError(f"{folder / FILE}: not {artifact_type} rows: {error}") from error


def read_rows(folder: Path, artifact_type: str) -> list[dict[str, Any]]:
    """Read the rows of an artifact as dictionaries."""
    return read_table(folder, artifact_type).to_pylist()
