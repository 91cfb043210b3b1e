"""Numbers of rows computed in blocks, on disk as soon as a block is done: a killed step computes only the rest.

A file holds the numbers of one block after the other, and a sealed file per block its digest. In memory is one block.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from learning.curation.ledger import Curation
from learning.data.messages import unpack_rows
from learning.data.rows import Row
from schemas.errors import StepError
from schemas.sealed import NotSealed, read_sealed, write_sealed

Compute = Callable[[list[Row]], np.ndarray]
"""From the R rows of a block to numbers (R, D) of one type."""


def compute_in_blocks(
    rows: Curation, compute: Compute, folder: Path, size: int, on_block: Callable[[int], None] = lambda done: None
) -> np.ndarray:
    """Return the numbers (N, D) of the N rows that are left, as a memory map of a file in `folder`.

    Blocks of `size` rows that an earlier attempt of the step wrote are not computed again. `on_block` receives the
    number of rows done. Raise StepError if blocks differ in width or type.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, done, place = folder / "numbers", 0, 0
    kind: Kind | None = None
    path.touch()
    with path.open("r+b") as file:
        for number, block in enumerate(split_blocks(rows, size)):
            file.seek(place)
            here = _find_block(file, folder, number, block.num_rows)
            if here is None:
                computed = np.ascontiguousarray(compute(unpack_rows(block.drop_columns("row"))))
                here = Kind(int(computed.shape[1]), computed.dtype.str)
                file.seek(place)
                file.write(computed.tobytes())
                file.flush()
                digest = hashlib.sha256(computed.tobytes()).hexdigest()
                write_sealed(_seal_of(folder, number), _label(folder, number), [here.width, here.type, digest])
            if kind not in (None, here):
                raise StepError(f"{folder.name}: blocks of rows have different numbers: {kind} and {here}")
            kind, place, done = here, place + here.count_bytes(block.num_rows), done + block.num_rows
            on_block(done)
        file.truncate(place)
    width, dtype = (kind.width, kind.type) if kind else (1, "<f8")
    return np.memmap(path, dtype, "r", shape=(done, width)) if place else np.empty((done, width), dtype)


@dataclass(frozen=True)
class Kind:
    """Numbers per row, and their type as numpy writes it."""

    width: int
    type: str

    def count_bytes(self, rows: int) -> int:
        """Return the bytes of the numbers of some rows."""
        return rows * self.width * np.dtype(self.type).itemsize


def _find_block(file: BinaryIO, folder: Path, number: int, rows: int) -> Kind | None:
    """Return what kind of numbers of a block begin here; None if it is not there, or not as it was written."""
    try:
        width, dtype, digest = read_sealed(_seal_of(folder, number), _label(folder, number))
    except (NotSealed, OSError):
        return None
    kind = Kind(width, dtype)
    return kind if hashlib.sha256(file.read(kind.count_bytes(rows))).hexdigest() == digest else None


def _seal_of(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.seal"


def _label(folder: Path, number: int) -> str:
    return f"numbers {folder.name} {number}"


def split_blocks(rows: Curation, size: int) -> Iterator[pa.Table]:
    """Yield the rows that are left in blocks of `size`, the last one smaller, however their files are cut."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in rows.blocks():
        while batch.num_rows:
            part = batch.slice(0, size - count)
            waiting.append(part)
            count, batch = count + part.num_rows, batch.slice(part.num_rows)
            if count == size:
                yield pa.Table.from_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
