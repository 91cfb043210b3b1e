"""Rows on disk in another order: each is put into the file of its part of the order, and each file is sorted alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from learning.data.sources.collect import COPY, scan_converted
from schemas.row_formats import Emit

PART = 65_536
"""Fewest rows of the order that are in memory together."""
MOST_FILES = 256
PLACED = [pa.field("place", pa.int64()), pa.field("copy", pa.int64())]


def scan_in_order(folder: Path, emit: Emit, rows_N: np.ndarray, spill: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the numbers `rows_N`, in that order; the id of a row that comes again ends with its number.

    One part of the order is in memory at a time.
    """
    part = max(PART, -(-len(rows_N) // MOST_FILES))
    _distribute(folder, emit, rows_N, spill, part)
    for number in range(-(-len(rows_N) // part)):
        with pa.OSFile(str(_get_path(spill, number))) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        table = table.take(pa.array(np.argsort(table.column("place").to_numpy())))
        ids = [
            f"{name}{COPY}{copy + 1}" if copy else name
            for name, copy in zip(table.column("id").to_pylist(), table.column("copy").to_pylist(), strict=True)
        ]
        table = table.set_column(table.schema.get_field_index("id"), "id", pa.array(ids, pa.string()))
        yield from table.drop_columns([field.name for field in PLACED]).combine_chunks().to_batches()
        _get_path(spill, number).unlink()


def _get_path(spill: Path, number: int) -> Path:
    return spill / f"order-{number:05d}.arrow"


def _distribute(folder: Path, emit: Emit, rows_N: np.ndarray, spill: Path, part: int) -> None:
    """Write each row, as often as it is in the order, into the file of its part."""
    places = np.argsort(rows_N, kind="stable")
    numbers = rows_N[places]
    copies = np.arange(len(numbers)) - np.searchsorted(numbers, numbers, "left")
    with ExitStack() as stack:
        writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        for batch in scan_converted(folder, emit):
            own = batch.column("read").to_numpy()
            starts, ends = (numbers.searchsorted(own, side) for side in ("left", "right"))
            times = ends - starts
            taken = np.repeat(np.arange(len(own)), times)
            at = np.arange(len(taken)) - np.repeat(np.cumsum(times) - times, times) + np.repeat(starts, times)
            rows = batch.drop_columns(["read"])
            for number in np.unique(places[at] // part).tolist():
                here = places[at] // part == number
                columns = rows.take(pa.array(taken[here]))
                for field, values in zip(PLACED, (places[at][here], copies[at][here]), strict=True):
                    columns = columns.append_column(field, pa.array(values))
                if number not in writers:
                    file = stack.enter_context(pa.OSFile(str(_get_path(spill, number)), "wb"))
                    writers[number] = stack.enter_context(pa.ipc.new_file(file, columns.schema))
                writers[number].write_batch(columns)
