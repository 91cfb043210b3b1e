"""One SQL view of all artifacts: DuckDB in memory over manifests, curves, events and tables of rows.

    steps         key, kind, step, recipe, run, seed, started, seconds, cpu_seconds, gpu_seconds, peak_rss, commit,
                  dirty, settings, folder
    inputs        key, step, port, from_step, from_key, output, source, digest, type
    outputs       key, step, output, type, digest, dvc, bytes, files
    files         key, step, output, path, size, md5, sha256
    metrics       key, step, metric, value, text
    curves        key, step, at_step, figure, value, time
    events        run, number, type, step, state, event
    rows          key, step, output, and the columns of prompts, chat and preference_pairs
    dropped       key, step, output, and the rows that curation dropped, with reasons
    trajectories  key, step, output, and the samples of RL stages
    evaluations   key, step, output, and the samples of evaluations

Only the tables that a query names are built. A query can read only these: a single SELECT, no other files, no network,
bounded memory.
"""

import re

import duckdb
import pyarrow as pa

from lineage.catalogue.index import query_index
from lineage.catalogue.projection import MANIFEST_TABLES, events_table
from lineage.layout import Layout
from lineage.records import Record, table_name
from schemas.errors import PosttrainError

PARQUET_TABLES = {
    "rows": "rows.parquet",
    "dropped": "dropped.parquet",
    "trajectories": "trajectories.parquet",
    "evaluations": "samples.parquet",
}
TABLES = (*MANIFEST_TABLES, "events", *PARQUET_TABLES)
ORIGIN = ("filename", "key", "step", "output")
MEMORY_LIMIT = "1GB"


class QueryError(PosttrainError):
    """The SQL query is invalid or cannot be executed."""

    exit_code = 3


def query(layout: Layout, sql: str) -> pa.Table:
    """Return the result of one SELECT over the tables listed above; raise QueryError with advice."""
    with duckdb.connect(":memory:") as connection:
        try:
            _refuse_writes(connection, sql)
            _make_tables(connection, layout, {word for word in TABLES if re.search(rf"\b{word}\b", sql, re.IGNORECASE)})
            return connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            message = str(error).strip().removeprefix("Catalog Error: ")
            raise QueryError(f"query: {message}\n    tables: {', '.join(TABLES)}") from error


def _refuse_writes(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    readers = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in readers:
        raise QueryError(
            f"query: one SELECT (or EXPLAIN, DESCRIBE, SUMMARIZE) at a time, this is {_describe_statements(statements)}"
        )


def _describe_statements(statements: list) -> str:
    return " then ".join(statement.type.name for statement in statements) or "empty"


def _make_tables(connection: duckdb.DuckDBPyConnection, layout: Layout, tables: set[str]) -> None:
    records = query_index(layout, lambda index: list(index.records()))
    for name in sorted(tables & set(MANIFEST_TABLES)):
        connection.register(name, MANIFEST_TABLES[name](records))
    if "events" in tables:
        connection.register("events", events_table(layout))
    views = {name: _find_parquet_files(records, PARQUET_TABLES[name]) for name in sorted(tables & set(PARQUET_TABLES))}
    for name, files in views.items():
        _make_view(connection, name, files)
    _lock_down(connection, [path for files in views.values() for path, *_ in files])


def _find_parquet_files(records: list[Record], file: str) -> list[tuple[str, str, str, str]]:
    """Return (path, key, step, output) of every file of that table among the outputs."""
    return [
        (f"{record['folder']}/outputs/{name}/{entry['path']}", record["key"], record["step"], name)
        for record in records
        for name, output in record["outputs"].items()
        for entry in output["files"]
        if table_name(entry["path"]) == file
    ]


def _make_view(connection: duckdb.DuckDBPyConnection, name: str, files: list[tuple[str, str, str, str]]) -> None:
    """Create a view over the files, each row with its key, step and output; without files, an empty view."""
    if not files:
        connection.execute(f"create view {name} as select '' as key, '' as step, '' as output where false")
        return
    columns = map(list, zip(*files, strict=True))
    connection.register(f"{name}_origin", pa.table(dict(zip(ORIGIN, columns, strict=True))))
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path, *_ in files)
    source = f"read_parquet([{listed}], union_by_name=true, filename=true)"
    own = {column for column, *_ in connection.execute(f"describe select * from {source}").fetchall()}
    renames = ", ".join(f"{column} as at_{column}" for column in ("key", "step", "output") if column in own)
    own_columns = "r.* exclude (filename)" + (f" rename ({renames})" if renames else "")
    connection.execute(
        f"create view {name} as select o.key, o.step, o.output, {own_columns} "
        f"from {source} r join {name}_origin o using (filename)"
    )


def _lock_down(connection: duckdb.DuckDBPyConnection, paths: list[str]) -> None:
    """Allow reading `paths` only, and no further change of settings."""
    allowed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    connection.execute(f"set allowed_paths = [{allowed}]")
    connection.execute(f"set memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("set temp_directory = ''")
    connection.execute("set python_enable_replacements = false")
    connection.execute("set autoinstall_known_extensions = false")
    connection.execute("set autoload_known_extensions = false")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
