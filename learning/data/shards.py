"""Tables of rows as Parquet files: read and written as a stream, in memory that does not grow with the rows.

A small table is one file, `rows.parquet`; a larger one is `rows-00000.parquet`, `rows-00001.parquet` and so on. Where
files and row groups are cut depends on the rows alone, so equal rows give equal bytes, however they came. A folder from
outside may hold Parquet files of any names, also in folders below; they are read in the order of their paths.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from learning.data.messages import MESSAGES, convert_json, convert_messages, has_more_keys, is_optional
from schemas.errors import StepError

pc: Any = pyarrow.compute
"""pyarrow makes its functions when it is imported: no stub lists them."""
GROUP_ROWS = 65_536
"""Rows of a row group, at most."""
GROUP_BYTES = 64 << 20
"""Bytes of text from which a row group is full."""
SHARD_GROUPS = 16
"""Row groups of a file."""
UNIT = 1024
"""Rows that are never parted: sizes are looked at after each."""
WIDTH_OF_ENTRY = 32
"""Bytes that an entry of a map counts for."""
SPLIT = re.compile(r"([A-Za-z_]+)-\d+-of-\d+")
"""File names of data sets on the hub: `train-00000-of-00004.parquet`."""


def find_shards(folder: Path, stem: str = "rows") -> list[Path]:
    """Return the Parquet files of a table, in order of their rows; raises StepError if any is missing.

    Files named as the hub names them hold one split each: `train` is read, or the only one.
    """
    if (folder / f"{stem}.parquet").is_file():
        return [folder / f"{stem}.parquet"]
    if own := sorted(folder.glob(f"{stem}-[0-9]*.parquet")):
        for number, path in enumerate(own):
            if path != (wanted := get_shard_path(folder, stem, number)):
                raise StepError(f"{folder}: {wanted.name} is missing, {path.name} is there")
        return own
    paths = sorted(path for path in folder.rglob("*.parquet") if path.is_file() and _seen(path.relative_to(folder)))
    if not paths:
        raise StepError(f"{folder}: no {stem}.parquet and no other Parquet file")
    return _one_split(folder, paths)


def get_shard_path(folder: Path, stem: str, number: int) -> Path:
    """Return the name of a file of a table that is more than one."""
    return folder / f"{stem}-{number:05d}.parquet"


def _seen(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _one_split(folder: Path, paths: list[Path]) -> list[Path]:
    named = {path: match[1] for path in paths if (match := SPLIT.fullmatch(path.stem))}
    splits = sorted(set(named.values()))
    if len(splits) > 1 and "train" not in splits:
        raise StepError(f"{folder}: has {', '.join(splits)} and no train; name a folder that holds one of them")
    kept = [path for path in paths if len(splits) < 2 or named.get(path, "train") == "train"]
    places = sorted({path.parent.relative_to(folder).as_posix() for path in kept if path in named})
    if len(places) > 1:
        raise StepError(f"{folder}: has several data sets ({', '.join(places)}); name the folder of one of them")
    return kept


def open_shard(path: Path, name: str | None = None) -> pq.ParquetFile:
    """Return a Parquet file, called `name` in messages, whose end could be read; raises StepError for a damaged one."""
    try:
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, OSError) as error:
        raise StepError(f"{name or path}: not a Parquet file, or cut off: {error}") from error


def check_shards(paths: Sequence[Path], wanted: pa.Schema, what: str) -> int:
    """Return the number of rows; raises StepError naming the file and column that is missing or of another type."""
    count = 0
    for path in paths:
        with open_shard(path) as file:
            here = file.schema_arrow
            missing = [field.name for field in wanted if field.name not in here.names and not is_optional(field)]
            if missing:
                raise StepError(f"{path}: not {what} rows, column(s) {', '.join(missing)} missing")
            _as(here.empty_table(), wanted, path, what)
            count += file.metadata.num_rows
    return count


def count_bytes(paths: Iterable[Path]) -> int:
    """Return bytes of the tables before compression."""
    total = 0
    for path in paths:
        with open_shard(path) as file:
            total += sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
    return total


def scan_shards(
    paths: Sequence[Path], wanted: pa.Schema, what: str, *, start: int = 0, rows: int = GROUP_ROWS
) -> Iterator:
    """Yield record batches of at most `rows` rows from row `start` on, with the columns and types of `wanted`.

    One row group is in memory at a time, compressed, and one batch of it decoded. Raises StepError that names file and
    column for what cannot be read.
    """
    for path in paths:
        with open_shard(path) as file:
            total = file.metadata.num_rows
            if start >= total:
                start -= total
                continue
            yield from _scan_file(file, path, wanted, what, start, rows)
            start = 0


def _scan_file(
    file: pq.ParquetFile, path: Path, wanted: pa.Schema, what: str, start: int, rows: int
) -> Iterator[pa.RecordBatch]:
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        if start >= group.num_rows:
            start -= group.num_rows
            continue
        size = min(rows, max(UNIT // 4, rows * GROUP_BYTES // max(group.total_byte_size, 1)))
        batches = file.iter_batches(
            batch_size=size,
            row_groups=[number],
            columns=[name for name in wanted.names if name in file.schema_arrow.names],
        )
        while (batch := _next(batches, path, what)) is not None:
            if start < batch.num_rows:
                yield _as(batch.slice(start), wanted, path, what)
            start = max(start - batch.num_rows, 0)


def _next(batches: Iterator[pa.RecordBatch], path: Path, what: str) -> pa.RecordBatch | None:
    try:
        batch = next(batches, None)
    except (pa.ArrowException, OSError) as error:
        raise StepError(f"{path}: not {what} rows: damaged: {error}") from error
    for name, column in zip(batch.schema.names, batch.columns, strict=True) if batch is not None else ():
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise StepError(f"{path}: column {name}: damaged rows, or text that is not UTF-8: {error}") from error
    return batch


def _as(rows: pa.RecordBatch | pa.Table, wanted: pa.Schema, path: Path, what: str) -> pa.RecordBatch | pa.Table:
    columns = []
    for field in wanted:
        try:
            columns.append(_convert(rows, field))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise StepError(f"{path}: not {what} rows: column {field.name}: {error}") from error
    return type(rows).from_arrays(columns, schema=wanted)


def _convert(rows: pa.RecordBatch | pa.Table, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return a column in the type of its field; nothing that a message has is lost."""
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(field.name)
    if is_optional(field) and not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
        return convert_json(column)
    return (
        convert_messages(column) if field.type == MESSAGES and has_more_keys(column.type) else column.cast(field.type)
    )


class ShardWriter:
    """Writes a table piece by piece; holds one row group. Leaving the `with` block names the files.

    `whole`: one file whatever its size.
    """

    def __init__(self, folder: Path, schema: pa.Schema, stem: str = "rows", *, whole: bool = False):
        self.folder, self.schema, self.stem, self.whole = folder, schema, stem, whole
        self.rows = self.shards = self._groups = self._size = 0
        self._loose: list[pa.Table] = []
        self._group: list[pa.Table] = []
        self._file: pq.ParquetWriter | None = None

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._close()
        elif self._file is not None:
            self._file.close()

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows; they are cast to the schema, and raise pa.ArrowInvalid when that cannot be."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        self.rows += table.num_rows
        self._loose.append(table.cast(self.schema))
        if sum(part.num_rows for part in self._loose) >= UNIT:
            loose = pa.concat_tables(self._loose)
            whole = loose.num_rows - loose.num_rows % UNIT
            for at in range(0, whole, UNIT):
                self._add(loose.slice(at, UNIT))
            self._loose = [loose.slice(whole)]

    def _add(self, unit: pa.Table) -> None:
        self._group.append(unit)
        self._size += count_text_bytes(unit)
        if len(self._group) * UNIT >= GROUP_ROWS or self._size >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        table = pa.concat_tables([self.schema.empty_table(), *self._group]).combine_chunks()
        if self._file is None:
            path = get_shard_path(self.folder, self.stem, self.shards)
            self._file = pq.ParquetWriter(path, self.schema, compression="zstd")
            self.shards += 1
        self._file.write_table(table, row_group_size=max(table.num_rows, 1))
        self._groups += 1
        self._group, self._size = [], 0
        if self._groups % SHARD_GROUPS == 0 and not self.whole:
            self._file.close()
            self._file = None

    def _close(self) -> None:
        self._group += self._loose
        self._loose = []
        if not self.shards or any(part.num_rows for part in self._group):
            self._flush()
        if self._file is not None:
            self._file.close()
        if self.shards == 1:
            get_shard_path(self.folder, self.stem, 0).rename(self.folder / f"{self.stem}.parquet")


def count_text_bytes(table: pa.Table) -> int:
    """Return bytes of all text of a table, also within lists and structures; the same however the table is cut."""
    return sum(_bytes_in(chunk) for column in table.columns for chunk in column.chunks)


def _bytes_in(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_map(kind):
        return WIDTH_OF_ENTRY * (array.offsets[-1].as_py() - array.offsets[0].as_py())
    if pa.types.is_list(kind):
        return _bytes_in(array.flatten())
    if pa.types.is_struct(kind):
        return sum(_bytes_in(part) for part in array.flatten())
    if pa.types.is_string(kind):
        return pc.sum(pc.binary_length(array)).as_py() or 0
    return len(array) * (kind.bit_width // 8)
