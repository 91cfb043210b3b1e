"""Which rows of its data a stage drew, and which of them it computed a gradient from: `rows_used.parquet`.

The file lies next to the outputs of the artifact, under its seal, so it changes no digest of a model. A row that is not
in it was never drawn.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILE = "rows_used.parquet"
SCHEMA = pa.schema([("id", pa.string()), ("sampled", pa.int64()), ("trained", pa.int64())])
"""How often a row was drawn, and how often a gradient was computed from it."""
PIECE = 1 << 16
"""Rows that are written together."""
Used = tuple[str, int, int]


def write_rows_used(folder: Path, used: Iterable[Used]) -> None:
    """Write (id, times drawn, times trained on) of each row of a stage into the folder of its artifact."""
    rows = iter(used)
    with pq.ParquetWriter(folder / FILE, SCHEMA, compression="zstd") as writer:
        while piece := list(islice(rows, PIECE)):
            writer.write_table(pa.table([list(column) for column in zip(*piece, strict=True)], schema=SCHEMA))


def count_batched(ids: Iterable[str], counts: np.ndarray) -> Iterator[Used]:
    """Yield the rows that were in a batch, from how often each was: every batch was trained on."""
    return ((name, count, count) for name, count in zip(ids, counts.tolist(), strict=True) if count)


def sum_parts(used: Iterable[Used]) -> Iterator[Used]:
    """Yield rows of which several parts are trained on once, with the sums of their parts, which follow each other."""
    for name, parts in groupby(used, key=itemgetter(0)):
        _, sampled, trained = zip(*parts, strict=True)
        yield name, sum(sampled), sum(trained)


def sum_tallies(tallies: Iterable[Mapping[str, tuple[int, int]]]) -> Iterator[Used]:
    """Yield the rows of several tallies by id, in the order of the ids."""
    total: dict[str, tuple[int, int]] = {}
    for tally in tallies:
        for name, (sampled, trained) in tally.items():
            before = total.get(name, (0, 0))
            total[name] = (before[0] + sampled, before[1] + trained)
    return ((name, *total[name]) for name in sorted(total))
