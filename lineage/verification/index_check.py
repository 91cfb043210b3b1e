"""Checks the index, a cache that answers come from, against the manifests."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from lineage.catalogue.index import FILE, Index, open_index, query_index
from lineage.catalogue.row_index import read_new_tables
from lineage.layout import Layout
from lineage.state_files import Unreadable, read_regular

ABOUT = {
    "artifacts": "select name, stamp, key, started, kind, step, recipe, run, record from artifacts order by 1",
    "inputs": "select name, position, port, made_by, source, digest from inputs "
    "join artifacts on artifacts.id = artifact order by 1, 2, 3",
    "digests": "select name, start from digests join artifacts on artifacts.id = artifact order by 1, 2",
    "tables": "select name, what, path, sha256, size from tables join artifacts on artifacts.id = artifact "
    "order by 1, 2, 3, 4, 5",
}
"""Columns that the index has for each artifact, its name first."""
OF_TABLES = {
    "row_ids": "select sha256, what, hashes from row_ids order by 1, 2, 3",
    "dropped_rows": "select sha256, id, reason, detail from dropped_rows order by 1, 2, 3, 4",
}
"""Columns that the index has for each table of rows, the digest of its bytes first."""
SHAPE = "select type, name, sql from sqlite_schema order by 1, 2"
ADVICE = "write it again: posttrain lineage --verify --rebuild"


def check_index(layout: Layout) -> list[str]:
    """Return a line for each artifact and table of rows whose index entry differs."""
    file = layout.state / FILE
    if not os.path.lexists(file):
        return []
    try:
        read_regular(file)
        with open_index(layout, str(file)) as current, open_index(layout, ":memory:") as made:
            read_new_tables(made)
            return [f"{file}: {what}; {ADVICE}" for what in _compare_indexes(current, made)]
    except Unreadable as error:
        return [f"{file}: {error}"]
    except (sqlite3.Error, ValueError, TypeError) as error:
        return [f"{file}: damaged: {error}; {ADVICE}"]


def rebuild_index(layout: Layout) -> list[str]:
    """Write the index again from the manifests; return what was done."""
    file = layout.state / FILE
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    for left in ("-journal", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            Path(f"{file}{left}").unlink(missing_ok=True)
    query_index(layout, read_new_tables)
    return [f"{file}: written again from the manifests"]


def _compare_indexes(current: Index, made: Index) -> Iterator[str]:
    if current.rows(SHAPE) != made.rows(SHAPE):
        yield "its tables are not those that posttrain makes"
        return
    wrong = {name for sql in ABOUT.values() for name in _find_different(current.rows(sql), made.rows(sql))}
    yield from (f"what it says of {name} is not what the manifest says" for name in sorted(wrong, key=str))
    ids = {sha256 for (sha256,) in made.rows("select sha256 from row_ids")}
    read = {sha256 for (sha256,) in current.rows("select sha256 from row_ids")} & ids
    strange = set()
    for sql in OF_TABLES.values():
        both = ([row for row in index.rows(sql) if row[0] in read] for index in (current, made))
        strange |= _find_different(*both)
    yield from (f"the rows that it names for the table {digest[:16]} are others" for digest in sorted(strange))


def _find_different(current: list[tuple], made: list[tuple]) -> set[str]:
    """Return the first values of rows that occur in one list only, or more often in one than in the other."""
    return {row[0] for row in _find_additional(current, made)} | {row[0] for row in _find_additional(made, current)}


def _find_additional(these: list[tuple], those: list[tuple]) -> Iterator[tuple]:
    count: dict[tuple, int] = {}
    for row in those:
        count[row] = count.get(row, 0) + 1
    for row in these:
        count[row] = count.get(row, 0) - 1
        if count[row] < 0:
            yield row
