"""An index over all manifests, so that a query over thousands of runs reads only what it needs.

It is only a cache: SQLite in `.posttrain/index.db`, updated before every query by the time, size and inode of each
manifest. A file that is missing, damaged or of another version is rebuilt; if it cannot be written, or another process
has locked it, the same index is built in memory.
"""

import contextlib
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from lineage.layout import Layout
from lineage.records import Record, read_record, slim_record, table_name

VERSION = 1
TIMEOUT = 20.0
"""Seconds to wait for another process that writes the index."""
FILE = "index.db"
PREFIX = 16
"""Hex digits of a digest that are indexed; the rest is compared with the record."""
UNFIT = (
    AttributeError,
    KeyError,
    TypeError,
    UnicodeError,
    OverflowError,
    RecursionError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors that an invalid manifest causes, including values that SQLite does not accept."""
TABLES = {"rows.parquet": "rows", "dropped.parquet": "dropped"}
SCHEMA = """
create table artifacts(id integer primary key, name text unique, stamp text, key text, started text, kind text,
                       step text, recipe text, run text, record text);
create index artifact_key on artifacts(key);
create index artifact_step on artifacts(step, started);
create index artifact_kind on artifacts(kind, started);
create index artifact_run on artifacts(run);
create table inputs(artifact integer references artifacts on delete cascade, position integer, port text,
                    made_by text, source text, digest text);
create index input_artifact on inputs(artifact, position);
create index input_made_by on inputs(made_by);
create index input_source on inputs(source);
create index input_digest on inputs(digest);
create table digests(start text, artifact integer references artifacts on delete cascade,
                     primary key(start, artifact)) without rowid;
create index digest_artifact on digests(artifact);
create table tables(artifact integer references artifacts on delete cascade, what text, path text, sha256 text,
                    size integer);
create index table_artifact on tables(artifact);
create index table_content on tables(sha256);
create table row_ids(sha256 text, what text, hashes blob, primary key(sha256, what));
create table dropped_rows(id text, sha256 text, reason text, detail text);
create index dropped_id on dropped_rows(id);
create index dropped_content on dropped_rows(sha256);
"""
T = TypeVar("T")


class Index:
    """An up-to-date index; `record(key)` is the slim record of an artifact (see `lineage.records.slim_record`)."""

    def __init__(self, layout: Layout, connection: sqlite3.Connection):
        self.layout, self.connection = layout, connection
        self.artifacts = str(layout.state / "artifacts")

    def rows(self, sql: str, *values: Any) -> list[tuple]:
        """Return the rows of a query."""
        return self.connection.execute(sql, values).fetchall()

    def keys(self, condition: str, *values: Any) -> tuple[str, ...]:
        """Return keys of the artifacts that fulfil a condition on `artifacts`, oldest first."""
        sql = f"select key from artifacts where record is not null and ({condition}) order by started, key, name"
        return tuple(dict.fromkeys(key for (key,) in self.rows(sql, *values)))

    def record(self, key: str) -> Record | None:
        """Return the indexed part of a key's manifest, or None if there is no such artifact."""
        rows = self.rows("select record, name from artifacts where key = ? order by started desc, name desc", key)
        return self._read(*rows[0]) if rows else None

    def records(self) -> Iterator[Record]:
        """Yield all records, oldest first."""
        sql = "select record, name from artifacts where record is not null order by started, key, name"
        for row in self.connection.execute(sql):
            yield self._read(*row)

    def latest(self, condition: str, *values: Any, most: int) -> list[Record]:
        """Return at most `most` records that fulfil a condition on `artifacts`, latest first."""
        sql = f"select record, name from artifacts where record is not null and ({condition}) order by started desc"
        return [self._read(*row) for row in self.rows(f"{sql} limit ?", *values, most)]

    def parents(self, key: str) -> list[tuple[str, str]]:
        """Return (key, port) of each artifact that an artifact's step read."""
        sql = """select made_by, port from inputs where made_by is not null and artifact =
                 (select id from artifacts where key = ? order by started desc, name desc limit 1) order by position"""
        return self.rows(sql, key)

    def readers(self, key: str) -> list[tuple[str, str, str]]:
        """Return (key, port, kind) of the artifacts whose steps read an artifact, oldest first."""
        sql = """select key, port, kind from inputs join artifacts on artifacts.id = artifact where made_by = ?
                 order by started, key, name, position"""
        return self.rows(sql, key)

    def _read(self, text: str, name: str) -> Record:
        record: Record = json.loads(text)
        record["folder"] = f"{self.artifacts}/{name}"
        return record


def query_index(layout: Layout, question: Callable[[Index], T]) -> T:
    """Return the answer to a query over an up-to-date index; a damaged index is rebuilt."""
    file = layout.state / FILE
    for place in (str(file), str(file)) if (layout.state / "artifacts").is_dir() else ():
        try:
            with open_index(layout, place) as index:
                return question(index)
        except sqlite3.OperationalError:  # locked by another process, or read-only
            break
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
    return query_manifests(layout, question)


def query_manifests(layout: Layout, question: Callable[[Index], T]) -> T:
    """Return the answer from the manifests alone, without the index file."""
    with open_index(layout, ":memory:") as index:
        return question(index)


@contextlib.contextmanager
def open_index(layout: Layout, place: str) -> Iterator[Index]:
    """Open the index in a file of SQLite and bring it up to date. Raise sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(place, timeout=TIMEOUT, isolation_level=None)) as connection:
        connection.execute("pragma foreign_keys = on")
        connection.execute("pragma synchronous = normal")
        _refresh(connection, layout)
        yield Index(layout, connection)


def _refresh(connection: sqlite3.Connection, layout: Layout) -> None:
    """Add new and changed manifests, and delete missing ones."""
    is_current = connection.execute("pragma user_version").fetchone()[0] == VERSION
    indexed = dict(connection.execute("select name, stamp from artifacts")) if is_current else {}
    stamps = _read_stamps(layout.state / "artifacts")
    if is_current and indexed == stamps:
        return
    with transaction(connection):
        if connection.execute("pragma user_version").fetchone()[0] != VERSION:
            _create_tables(connection)
        indexed = dict(connection.execute("select name, stamp from artifacts"))  # another process may have updated it
        stale = [name for name, stamp in indexed.items() if stamps.get(name) != stamp]
        connection.executemany("delete from artifacts where name = ?", [(name,) for name in stale])
        for name, stamp in stamps.items():
            if indexed.get(name) != stamp:
                _add_artifact(connection, name, stamp, read_record(layout.state / "artifacts" / name))
        if stale:
            for table in ("row_ids", "dropped_rows"):
                connection.execute(f"delete from {table} where sha256 not in (select sha256 from tables)")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a block in one transaction; other writers wait."""
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


def _create_tables(connection: sqlite3.Connection) -> None:
    for (name,) in connection.execute("select name from sqlite_schema where type = 'table'").fetchall():
        connection.execute(f'drop table "{name}"')
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"pragma user_version = {VERSION}")


def _read_stamps(artifacts: Path) -> dict[str, str]:
    """Return, by the name of an artifact's folder, a stamp that changes whenever its manifest does."""
    stamps: dict[str, str] = {}
    if not artifacts.is_dir():
        return stamps
    with os.scandir(artifacts) as entries:
        folders = list(entries)
    for entry in folders:
        try:
            status = os.stat(f"{entry.path}/manifest.json")  # noqa: PTH116 — thousands of these, as in records
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
            continue
        stamps[entry.name] = f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
    return stamps


def _add_artifact(connection: sqlite3.Connection, name: str, stamp: str, record: Record | None) -> None:
    """Add one artifact; a damaged manifest is recorded, so that it is not read again, but is in no result."""
    connection.execute("savepoint one")
    try:
        if record is None:
            raise TypeError(f"{name} has no manifest")
        _insert_artifact(connection, name, stamp, record)
    except UNFIT:
        connection.execute("rollback to one")
        connection.execute("insert into artifacts(name, stamp) values(?, ?)", (name, stamp))
    connection.execute("release one")


def _insert_artifact(connection: sqlite3.Connection, name: str, stamp: str, record: Record) -> None:
    """Add one artifact with its inputs, digests and tables; raise one of UNFIT for an invalid manifest."""
    facts = [record[fact] for fact in ("key", "started", "kind", "step", "recipe", "run")]
    inputs = [(n, i["port"], i.get("key"), i.get("source"), i["digest"]) for n, i in enumerate(record["inputs"])]
    starts, tables = sorted({d[:PREFIX] for d in list_output_digests(record)}), list(_list_tables(record))
    text = json.dumps(slim_record(record), separators=(",", ":"))
    sql = "insert into artifacts(name, stamp, key, started, kind, step, recipe, run, record) values(?,?,?,?,?,?,?,?,?)"
    artifact = connection.execute(sql, (name, stamp, *facts, text)).lastrowid
    connection.executemany("insert into inputs values(?,?,?,?,?,?)", [(artifact, *values) for values in inputs])
    connection.executemany("insert into digests values(?,?)", [(start, artifact) for start in starts])
    connection.executemany("insert into tables values(?,?,?,?,?)", [(artifact, *values) for values in tables])


def list_output_digests(record: Record) -> Iterator[str]:
    """Yield every digest of an artifact's outputs and their files."""
    for output in record["outputs"].values():
        yield from (output["digest"], output["dvc"])
        for file in output["files"]:
            yield from (file["sha256"], file["md5"])


def _list_tables(record: Record) -> Iterable[tuple[str, str, str, int]]:
    """Yield (rows or dropped, path in the artifact, sha256, bytes) of the tables among the outputs."""
    for name, output in record["outputs"].items():
        for file in output["files"]:
            what = TABLES.get(table_name(file["path"]))
            if what:
                yield what, f"outputs/{name}/{file['path']}", file["sha256"], file["size"]
