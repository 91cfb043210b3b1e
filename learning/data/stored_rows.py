"""Rows made once and kept on disk, read by their number: what is trained on when it does not fit into memory.

Files `part-00000.arrow` and so on, each made of PART rows of the source, whole or not there, and sealed once it is
there, so that a killed step goes on where it was. A row is read with the BATCH around it; in memory are only the sizes
of rows.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
from filelock import FileLock

from learning.data.messages import make_batch, unpack_rows
from learning.data.rows import SCHEMAS, Row, count_rows, fits_in_memory, read_rows, scan_rows
from schemas.atomic_write import atomic_file
from schemas.errors import StepError
from schemas.sealed import NotSealed, file_digest, read_sealed, write_sealed

PART = 65_536
"""Rows of the source that a file is made of."""
BATCH = 32
"""Rows that are read together."""
OPEN = 64
"""Files that are open at a time."""
T = TypeVar("T")


class StoredRows(Sequence[T], Generic[T]):
    """The rows in a folder, in their order; `make` gives a row its type."""

    def __init__(self, folder: Path, parts: int, make: Callable[[Row], T]):
        self.folder, self.make = folder, make
        self._open: OrderedDict[int, pa.ipc.RecordBatchFileReader] = OrderedDict()
        self._ends = np.cumsum([0, *(self._count(part) for part in range(parts))])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        part = int(self._ends.searchsorted(index, "right")) - 1
        batch, place = divmod(index - int(self._ends[part]), BATCH)
        return self.make(unpack_rows(self._batch(part, batch).slice(place, 1))[0])

    def __iter__(self) -> Iterator[T]:
        for part in range(len(self._ends) - 1):
            for batch in range(self._reader(part).num_record_batches):
                yield from map(self.make, unpack_rows(self._batch(part, batch)))

    def column(self, name: str) -> np.ndarray:
        """Return a column of numbers of all rows."""
        parts = []
        for part in range(len(self._ends) - 1):
            for batch in range(self._reader(part).num_record_batches):
                # A copy: a view would keep the whole batch in memory.
                parts.append(self._batch(part, batch).column(name).to_numpy().copy())
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _count(self, part: int) -> int:
        last = self._reader(part).num_record_batches - 1
        return 0 if last < 0 else last * BATCH + self._batch(part, last).num_rows

    def _batch(self, part: int, number: int) -> pa.RecordBatch:
        try:
            return self._reader(part).get_batch(number)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(part, error) from error

    def _reader(self, part: int) -> pa.ipc.RecordBatchFileReader:
        if part not in self._open:
            try:
                self._open[part] = pa.ipc.open_file(pa.OSFile(str(get_part_path(self.folder, part))))
            except (pa.ArrowException, OSError) as error:
                raise self._damaged(part, error) from error
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(part)
        return self._open[part]

    def _damaged(self, part: int, error: Exception) -> StepError:
        return StepError(f"{get_part_path(self.folder, part)}: damaged: {error}; delete its folder to encode again")


class RowSubset(Sequence[T], Generic[T]):
    """Some of the rows of a sequence, by their numbers, read when they are asked for."""

    def __init__(self, rows: Sequence[T], numbers: Sequence[int] | np.ndarray):
        self.rows, self.numbers = rows, np.asarray(numbers, np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self.rows[i] for i in self.numbers[index].tolist()]
        return self.rows[int(self.numbers[index])]


def get_part_path(folder: Path, number: int) -> Path:
    """Return the file of a part."""
    return folder / f"part-{number:05d}.arrow"


def store_rows(
    folder: Path,
    schema: pa.Schema,
    count: int,
    source: Callable[[int], Iterator[Row]],
    encode: Callable[[Row], Iterable[Row]],
    make: Callable[[Row], T],
) -> StoredRows[T]:
    """Encode the `count` rows of `source(start)` into `folder` and return what each becomes: none, one or several.

    Goes on after the parts that are there; of several processes one makes them and the others wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = -(-count // PART)
    with FileLock(folder / "lock"):
        done = next((part for part in range(parts) if not _is_as_written(folder, part)), parts)
        rows = source(done * PART) if done < parts else iter(())
        for part in range(done, parts):
            here = islice(rows, min(PART, count - part * PART))
            _write(get_part_path(folder, part), schema, chain.from_iterable(map(encode, here)))
            write_sealed(_seal_of(folder, part), _label(folder, part), file_digest(get_part_path(folder, part)))
    return StoredRows(folder, parts, make)


def _is_as_written(folder: Path, number: int) -> bool:
    """Return whether a part is there with its seal; one that was changed is reported, and made again."""
    path, seal = get_part_path(folder, number), _seal_of(folder, number)
    if not path.is_file() or not seal.is_file():
        return False
    try:
        if not path.is_symlink() and read_sealed(seal, _label(folder, number)) == file_digest(path):
            return True
    except NotSealed:
        pass
    print(f"{folder.name}/{path.name} is not as it was written; it and all after it are made again")
    return False


def _seal_of(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.seal"


def _label(folder: Path, number: int) -> str:
    return f"rows {folder.name} {number}"


def _write(path: Path, schema: pa.Schema, rows: Iterator[Row]) -> None:
    with atomic_file(path) as fresh, pa.OSFile(str(fresh), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_batch(make_batch(batch, schema))


def iterate_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of record batches."""
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):
            yield from unpack_rows(batch.slice(start, BATCH))


def open_rows(data: Path, artifact_type: str, folder: Path) -> Sequence[Row]:
    """Return the rows of an artifact by number: in memory, or in `folder` where they do not fit."""
    if fits_in_memory(data):
        return read_rows(data, artifact_type)
    count = count_rows(data, artifact_type)

    def source(start: int) -> Iterator[Row]:
        return iterate_rows(scan_rows(data, artifact_type, start=start))

    return store_rows(folder, SCHEMAS[artifact_type], count, source, lambda row: (row,), lambda row: row)
