"""Rows of a DuckDB query over the files of a source, and of nothing else.

The database is in memory. It can read the listed files only, loads no extension, and one thread keeps the order of its
rows the same in every run. Functions whose value depends on time or chance are refused: the key of the step does not
know them.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from learning.data.messages import drop_nulls
from learning.data.sources.files import get_data_suffix
from learning.data.sources.records import LONGEST_ROW, Record
from schemas.errors import StepError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from duckdb.sqltypes import DuckDBPyType

PLACE = "query"
"""Stands for the file in ids and messages of rows that a query makes."""
MEMORY = "512MiB"
"""Memory of DuckDB for sorting, joining and grouping; beyond it, DuckDB spills to disk."""
BATCH = 1024
"""Rows that are taken together."""
STABLE = "CONSISTENT"
"""DuckDB's word for functions whose value depends on their arguments only."""
CLOCKS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""Values of the clock that SQL writes like columns."""
Convert = Callable[[Any], Any]


def read_query(query: str, tables: Mapping[str, Sequence[Path]], work: Path | None) -> Iterator[Record]:
    """Yield the rows of a query over tables that are the rows of files each; it spills below `work`.

    Values of CSV are text. Raise StepError for files of other formats than Parquet, CSV and JSON, and for a query that
    is not one SELECT, reads anything else, or fails.
    """
    import duckdb  # takes longer to import than `validate` needs for all else

    with tempfile.TemporaryDirectory(dir=work, prefix="query-") as folder:
        links = {name: _link_files(files, Path(folder, str(i))) for i, (name, files) in enumerate(tables.items())}
        spill = Path(folder, "spill")
        config = {"threads": 1, "memory_limit": MEMORY, "temp_directory": str(spill)}
        closed = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        try:
            with duckdb.connect(":memory:", config={**config, **closed}) as connection:
                allowed = ", ".join(quote_text(str(link)) for files in links.values() for link in files)
                connection.execute(f"set allowed_paths = [{allowed}]")
                connection.execute("set enable_external_access = false")
                connection.execute("set lock_configuration = true")
                _require_stable_select(connection, query)
                for name, files in links.items():
                    connection.execute(f'create view "{name}" as {_select_files(connection, files)}')
                yield from _read_rows(connection.sql(query))
        except duckdb.Error as error:
            raise StepError(f"query: {error}") from error


def _link_files(files: Sequence[Path], folder: Path) -> list[Path]:
    """Return links to files, whose names hold no marks of a pattern, which DuckDB would expand."""
    folder.mkdir()
    links = []
    for number, file in enumerate(files):
        suffix = get_data_suffix(file)
        if suffix not in READERS:
            raise StepError(
                f"{file.name}: a query reads Parquet, CSV, TSV, JSON and JSON Lines; convert the file first"
            )
        compression = file.suffix.lower() if file.suffix.lower() != suffix else ""
        links.append(folder / f"{number}{suffix}{compression}")
        links[-1].symlink_to(file.resolve())
    return links


def quote_text(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _require_stable_select(connection: "DuckDBPyConnection", query: str) -> None:
    """Raise StepError unless a text is one SELECT that gives the same rows each time."""
    number = len(connection.extract_statements(query))
    if number != 1:
        raise StepError(f"query: {number} statements; write one SELECT")
    answer = connection.execute("select json_serialize_sql($1)", [query]).fetchone()
    tree = json.loads(answer[0]) if answer else {"error": True}
    if tree["error"]:
        raise StepError("query: is no SELECT; write one that makes the rows")
    unstable = {
        name
        for (name,) in connection.execute(
            "select function_name from duckdb_functions() where stability <> $1", [STABLE]
        ).fetchall()
    }
    for node in _walk(tree):
        name = str(node.get("function_name", "")).lower()
        if name in unstable or (name := ".".join(node.get("column_names", ())).lower()) in CLOCKS:
            raise StepError(f"query: {name} depends on time or chance; rows must be the same in every run")
        sample = node.get("sample")
        if isinstance(sample, dict) and sample.get("seed") in (None, -1):
            raise StepError("query: a sample needs a seed: USING SAMPLE reservoir(100 ROWS) REPEATABLE (0)")


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _select_files(connection: "DuckDBPyConnection", links: Sequence[Path]) -> str:
    """Return the SQL of all rows of files, which have one format."""
    suffixes = {get_data_suffix(link) for link in links}
    readers = {READERS[suffix] for suffix in suffixes}
    if len(readers) > 1:
        raise StepError(f"query: files of one table have several formats: {', '.join(sorted(suffixes))}")
    return readers.pop()(connection, "[" + ", ".join(quote_text(str(link)) for link in links) + "]")


def _select_parquet(connection: "DuckDBPyConnection", files: str) -> str:
    return f"select * from read_parquet({files}, union_by_name = true)"


def _select_csv(connection: "DuckDBPyConnection", files: str) -> str:
    """Every value is text, as without a query: a number such as 007 keeps its zeros."""
    return f"select * from read_csv({files}, header = true, all_varchar = true, delim = ',', quote = '\"')"


def _select_tsv(connection: "DuckDBPyConnection", files: str) -> str:
    return f"select * from read_csv({files}, header = true, all_varchar = true, delim = '\t', quote = '\"')"


def _select_json(connection: "DuckDBPyConnection", files: str) -> str:
    """Types are those of all rows; no text becomes a date, as `read_json` would have it."""
    objects = f"read_json_objects({files}, maximum_object_size = {LONGEST_ROW})"
    answer = connection.execute(f"select json_group_structure(json) from {objects}").fetchone()
    structure = answer[0] if answer else None
    if structure is None or not structure.startswith("{"):
        raise StepError("query: the rows of a JSON file must be objects")
    return f"select unnest(json_transform(json, {quote_text(structure)})) from {objects}"


READERS: dict[str, Callable[["DuckDBPyConnection", str], str]] = {
    ".parquet": _select_parquet,
    ".csv": _select_csv,
    ".tsv": _select_tsv,
    ".json": _select_json,
    ".jsonl": _select_json,
    ".ndjson": _select_json,
}
"""Suffix to the SQL of the rows of such files."""


def _read_rows(made: "DuckDBPyRelation | None") -> Iterator[Record]:
    if made is None:
        raise StepError("query: is no SELECT; write one that makes the rows")
    if twice := next((name for name in made.columns if made.columns.count(name) > 1), None):
        raise StepError(f"query: two columns are called {twice!r}; rename one with AS")
    converts = [(name, _make_convert(kind)) for name, kind in zip(made.columns, made.types, strict=True)]
    number = 0
    for batch in made.to_arrow_reader(BATCH):
        for row in batch.to_pylist():
            number += 1
            yield Record(PLACE, number, drop_nulls({name: convert(row[name]) for name, convert in converts}))


def _make_convert(kind: "DuckDBPyType") -> Convert:
    """Return a function that makes a value of a type of SQL one of JSON: dates become text, JSON is read."""
    if str(kind) == "JSON":
        return lambda value: None if value is None else json.loads(value)
    if kind.id in ("list", "array"):
        item = _make_convert(_list_children(kind)["child"])
        return lambda value: None if value is None else [item(one) for one in value]
    if kind.id == "struct":
        fields = {name: _make_convert(child) for name, child in _list_children(kind).items()}
        return lambda value: None if value is None else {name: fields[name](one) for name, one in value.items()}
    return _make_plain


def _list_children(kind: "DuckDBPyType") -> "dict[str, DuckDBPyType]":
    """Return the types of the items or fields of a type; sizes of arrays are left out."""
    return {name: child for name, child in kind.children if not isinstance(child, int | list)}


def _make_plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if isinstance(value, date | time | UUID) else value
