"""Rows in DuckDB, and the ledger of what was dropped from them: the bed of the curate kind.

Tables: `source` (the rows as given, with their number `row`), `texts` (row, id, prompt, written, text, key),
`dropped` (row, reason, detail) and the view `kept` (texts whose row is not in `dropped`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from learning.rows import SCHEMAS, read_table
from learning.shards import find_shards, opened
from schemas.errors import StepError

WRITTEN = {"prompts": [], "chat": ["completion"], "preference_pairs": ["chosen", "rejected"]}
"""Columns of each artifact type that hold what the model is to write, or not to write."""

_MACROS = r"""
create macro contents(messages) as
    array_to_string(list_transform(messages, lambda m: coalesce(m.content, '')), chr(10));
create macro squeezed(text) as trim(regexp_replace(nfc_normalize(text), '[\s\p{Z}]+', ' ', 'g'), ' ');
create macro spoken(messages) as
    array_to_string(list_transform(messages, lambda m:
        coalesce(m.role, '') || chr(31) || squeezed(coalesce(m.content, ''))), chr(30));
create macro known(messages, roles) as
    coalesce(len(list_filter(messages, lambda m: m.role is null or not list_contains(roles, m.role))), 0) = 0;
create macro blank(messages) as coalesce(squeezed(contents(messages)), '') = '';
"""


@dataclass(frozen=True)
class Curation:
    """Rows under curation: the connection and the type of the rows."""

    connection: duckdb.DuckDBPyConnection
    artifact_type: str

    def run(self, sql: str, *values: Any) -> list[tuple]:
        """Execute one statement and fetch what it gives; raises StepError with DuckDB's words."""
        try:
            return self.connection.execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            raise StepError(f"curate: {error}") from error

    def drop(self, dropped: list[tuple[int, str, str]]) -> None:
        """Add rows to the ledger: their number, the reason and its details."""
        names = ("row", "reason", "detail")
        columns = list(zip(*dropped, strict=True)) or [(), (), ()]
        types = (pa.int64(), pa.string(), pa.string())
        batch = pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})
        self.connection.register("batch", batch)
        self.run("insert into dropped select * from batch")
        self.connection.unregister("batch")

    def kept(self) -> int:
        """Rows not dropped so far."""
        return self.run("select count(*) from kept")[0][0]

    def table(self) -> pa.Table:
        """The rows not dropped, in their order."""
        return self.connection.sql(
            "select source.* exclude (row) from source join kept using (row) order by row"
        ).to_arrow_table()

    def ledger(self) -> pa.Table:
        """Row number, id, reason and detail of every dropped row, in order."""
        return self.connection.sql(
            "select row, id, reason, detail from dropped join texts using (row) order by row"
        ).to_arrow_table()


def type_of(folder: Path) -> str:
    """The artifact type of rows, told by their columns; raises StepError when they are none of ours."""
    first = find_shards(folder)[0]
    with opened(first) as file:
        columns = file.schema_arrow.names
    fitting = [name for name, schema in SCHEMAS.items() if set(schema.names) <= set(columns)]
    if not fitting:
        wanted = "; ".join(f"{name}: {', '.join(schema.names)}" for name, schema in SCHEMAS.items())
        raise StepError(f"{first}: columns {', '.join(columns)} are no known rows ({wanted})")
    return fitting[-1]


@contextmanager
def curation(folder: Path, *, spill: Path, num_threads: int, memory_limit: str) -> Iterator[Curation]:
    """Open the rows in `folder` in DuckDB in memory; what passes `memory_limit` goes to the folder `spill`.

    Raises StepError when columns are missing or of another type, or when text is not UTF-8.
    """
    artifact_type = type_of(folder)
    table = read_table(folder, artifact_type)
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise StepError(f"{folder}: damaged rows, or text that is not UTF-8: {error}") from error
    table = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    settings = {
        "threads": num_threads,
        "memory_limit": memory_limit.replace(" ", ""),
        "temp_directory": str(spill),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with duckdb.connect(":memory:", config=settings) as connection:
        connection.execute(_MACROS)
        connection.register("source", table)
        opened = Curation(connection, artifact_type)
        written = WRITTEN[artifact_type]
        said = [f"contents({column})" for column in written]
        opened.run(
            f"""create table texts as select row, id, contents(prompt) as prompt,
                concat_ws(chr(10), {", ".join(["contents(prompt)", *said])}) as text,
                md5(concat_ws(chr(29), {", ".join(f"spoken({c})" for c in ["prompt", *written])})) as key
                from source"""
        )
        opened.run("create table dropped (row bigint, reason varchar, detail varchar)")
        opened.run("create view kept as select * from texts anti join dropped using (row)")
        yield opened


def drop_malformed(rows: Curation) -> None:
    """Drop rows no stage could use: no prompt, nothing written, roles out of place, a pair of two equals."""
    asked = "known(prompt, ['system', 'user', 'assistant', 'tool'])"
    reasons = [
        ("id is null or id = ''", "no id"),
        ("blank(prompt)", "empty prompt"),
        (f"not {asked} or prompt[-1].role = 'assistant'", "roles of the prompt"),
    ]
    for column in WRITTEN[rows.artifact_type]:
        reasons.append((f"blank({column})", f"empty {column}"))
        reasons.append((f"not known({column}, ['assistant', 'tool', 'user'])", f"roles of {column}"))
        reasons.append((f"{column}[1].role <> 'assistant'", f"roles of {column}"))
    if rows.artifact_type == "preference_pairs":
        reasons.append(("spoken(chosen) = spoken(rejected)", "chosen equals rejected"))
    cases = " ".join(f"when {condition} then '{detail}'" for condition, detail in reasons)
    rows.run(
        f"""insert into dropped select row, 'malformed', detail from
            (select row, case {cases} end as detail from source) where detail is not null"""
    )


def drop_by_length(rows: Curation, min_length: int, max_length: int | None) -> None:
    """Drop rows whose prompt and completions together have too few or too many characters."""
    rows.run(
        """insert into dropped select row, 'length', length(text) || ' characters'
           from kept where length(text) < $1 or length(text) > coalesce($2, length(text))""",
        min_length,
        max_length,
    )
