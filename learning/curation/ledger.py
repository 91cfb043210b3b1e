"""Rows under curation, block by block, and the ledger of dropped rows: what the curate kind works on.

The rows themselves stay in their files: every filter reads them as a stream. DuckDB holds the small columns: the tables
`texts` (row, id, length, key, malformed) and `dropped` (row, reason, detail) and the view `kept` (texts whose row is
not in `dropped`). `row` is a row's number. While a statement runs over the blocks, `block` is the kept rows of one.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from learning.data.messages import PLAIN, is_optional
from learning.data.rows import SCHEMAS, count_rows, scan_rows
from learning.data.shards import find_shards, open_shard
from schemas.errors import StepError

WRITTEN = {"prompts": [], "chat": ["completion"], "preference_pairs": ["chosen", "rejected"], "step_labels": ["steps"]}
"""Columns of each artifact type that hold what the model is to write, or not to write."""

# Text of ASCII alone takes a way without Unicode: the same result, several times as fast.
_MACROS = r"""
create macro contents(messages) as
    array_to_string(list_transform(messages, lambda m: coalesce(m.content, '') || coalesce(m.more, '')), chr(10));
create macro is_ascii(text) as strlen(text) = length(text);
create macro spaced(text) as
    replace(replace(replace(replace(text, chr(9), ' '), chr(10), ' '), chr(12), ' '), chr(13), ' ');
create macro single(text) as case when contains(text, '  ') then regexp_replace(text, ' +', ' ', 'g') else text end;
create macro squeezed(text) as trim(case when is_ascii(text) then single(spaced(text))
    else regexp_replace(nfc_normalize(text), '[\s\p{Z}]+', ' ', 'g') end, ' ');
create macro spoken(messages) as
    array_to_string(list_transform(messages, lambda m:
        coalesce(m.role, '') || chr(31) || squeezed(coalesce(m.content, '')) || coalesce(chr(29) || m.more, '')),
        chr(30));
create macro known(messages, roles) as
    coalesce(len(list_filter(messages, lambda m: m.role is null or not list_contains(roles, m.role))), 0) = 0;
create macro blank(messages) as not coalesce(regexp_matches(contents(messages), '[^\s\p{Z}]'), false);
"""


MORSEL = 4096
"""Rows of a block that a thread takes at a time."""


@dataclass(frozen=True)
class Curation:
    """Rows under curation: where they are, their type and number, the connection, and room for files on the way."""

    connection: duckdb.DuckDBPyConnection
    folder: Path
    artifact_type: str
    num_rows: int
    spill: Path
    num_threads: int

    def run(self, sql: str, *values: Any) -> list[tuple]:
        """Execute one statement and return its rows; raises StepError with DuckDB's message."""
        try:
            return self.connection.execute(sql, list(values)).fetchall()
        except duckdb.Error as error:
            raise StepError(f"curate: {error}") from error

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows kept so far, in their order, with their number as column `row`; a block is never empty."""
        kept, start = self.mask(), 0
        for batch in scan_rows(self.folder, self.artifact_type, columns=columns):
            numbers = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            here = kept[numbers]
            if here.any():
                batch = batch.append_column("row", pa.array(numbers))
                yield batch if here.all() else batch.filter(pa.array(here))

    def each(self, sql: str, *values: Any, columns: Sequence[str] | None = None) -> None:
        """Execute a statement for every block."""
        for block in self.blocks(columns):
            self.on(block, sql, *values)

    def on(self, block: pa.RecordBatch, sql: str, *values: Any) -> None:
        """Execute a statement for one block."""
        parts = [block.slice(at, MORSEL) for at in range(0, block.num_rows, MORSEL)]
        self.connection.register("block", pa.Table.from_batches(parts))
        self.run(sql, *values)
        self.connection.unregister("block")

    def drop(self, dropped: list[tuple[int, str, str]]) -> None:
        """Add rows to the ledger: their number, the reason and its details."""
        if not dropped:
            return
        names, types = ("row", "reason", "detail"), (pa.int64(), pa.string(), pa.string())
        columns = zip(names, zip(*dropped, strict=True), types, strict=True)
        self.connection.register("batch", pa.table({n: pa.array(c, t) for n, c, t in columns}))
        self.run("insert into dropped select * from batch")
        self.connection.unregister("batch")

    def drop_all(self, numbers: np.ndarray, reason: str, detail: str) -> None:
        """Add rows to the ledger that go for one reason."""
        self.connection.register("batch", pa.table({"row": numbers}))
        self.run("insert into dropped select row, $1, $2 from batch", reason, detail)
        self.connection.unregister("batch")

    def mask(self) -> np.ndarray:
        """Return for every row whether it was kept so far."""
        kept = np.ones(self.num_rows, bool)
        kept[self.connection.execute("select row from dropped").fetchnumpy()["row"].astype(np.int64)] = False
        return kept

    def kept(self) -> int:
        """Return rows not dropped so far."""
        return self.run("select count(*) from kept")[0][0]

    def names(self, numbers: Collection[int]) -> dict[int, str]:
        """Return the ids of rows by their numbers."""
        self.connection.register("others", pa.table({"row": pa.array(sorted(numbers), pa.int64())}))
        names = dict(self.run("select row, id from texts semi join others using (row)"))
        self.connection.unregister("others")
        return names

    def ledger(self) -> pa.RecordBatchReader:
        """Return the row number, id, reason and detail of every dropped row, in order."""
        return self.connection.sql(
            "select row, id, reason, detail from dropped join texts using (row) order by row"
        ).to_arrow_reader(MORSEL)


def detect_type(folder: Path) -> str:
    """Return the artifact type of rows by their columns; raises StepError if no type has these columns."""
    first = find_shards(folder)[0]
    with open_shard(first) as file:
        columns = file.schema_arrow.names
    needed = {name: [f.name for f in schema if not is_optional(f)] for name, schema in SCHEMAS.items()}
    fitting = [name for name, names in needed.items() if set(names) <= set(columns)]
    if not fitting:
        listed = "; ".join(f"{name}: {', '.join(names)}" for name, names in needed.items())
        raise StepError(f"{first}: columns {', '.join(columns)} are not those of known rows ({listed})")
    return fitting[-1]


@contextmanager
def open_curation(folder: Path, *, spill: Path, num_threads: int, memory_limit: str) -> Iterator[Curation]:
    """Open the rows in `folder`; what of DuckDB's tables passes `memory_limit` goes to the folder `spill`.

    Reads all rows once. Raises StepError when columns are missing or of another type, or when text is not UTF-8.
    """
    artifact_type = detect_type(folder)
    settings = {
        "threads": num_threads,
        "memory_limit": memory_limit.replace(" ", ""),
        "temp_directory": str(spill),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with duckdb.connect(":memory:", config=settings) as connection:
        connection.execute(_MACROS)
        count = count_rows(folder, artifact_type)
        rows = Curation(connection, folder, artifact_type, count, spill, num_threads)
        rows.run("create table texts (row bigint, id varchar, length bigint, key uhugeint, malformed varchar)")
        rows.run("create table dropped (row bigint, reason varchar, detail varchar)")
        rows.run("create view kept as select * from texts anti join dropped using (row)")
        columns = ["prompt", *WRITTEN[artifact_type]]
        rows.each(
            f"""insert into texts select row, id, length(concat_ws(chr(10), {_listed("contents({})", columns)})),
                md5_number(concat_ws(chr(29), {_listed("spoken({})", columns)})), {_malformed(artifact_type)}
                from block""",
            columns=["id", *columns],
        )
        yield rows


def _listed(call: str, columns: Sequence[str]) -> str:
    return ", ".join(call.format(column) for column in columns)


def _malformed(artifact_type: str) -> str:
    """Return what is wrong with a row, or null: an expression over a block."""
    role_check = "known(prompt, ['system', 'developer', 'user', 'assistant', 'tool'])"
    plain = f"coalesce(completion[1].role = '{PLAIN}', false)" if artifact_type == "chat" else "false"
    reasons = [
        ("id is null or id = ''", "no id"),
        (f"blank(prompt) and not {plain}", "empty prompt"),
        (f"not {role_check} or prompt[1].role = 'assistant'", "roles of the prompt"),
    ]
    for column in WRITTEN[artifact_type]:
        # A row with a label lacks one side: an empty list.
        others = [other for other in WRITTEN[artifact_type] if other != column]
        lacks = " or ".join(f"(len({column}) = 0 and not blank({other}))" for other in others) or "false"
        reasons.append((f"blank({column}) and not coalesce({lacks}, false)", f"empty {column}"))
        reasons.append((f"not known({column}, ['assistant', 'tool', 'user', '{PLAIN}'])", f"roles of {column}"))
        reasons.append((f"{column}[1].role not in ('assistant', '{PLAIN}')", f"roles of {column}"))
    if artifact_type == "preference_pairs":
        reasons.append(("spoken(chosen) = spoken(rejected)", "chosen equals rejected"))
    return "case " + " ".join(f"when {condition} then '{detail}'" for condition, detail in reasons) + " end"


def drop_malformed(rows: Curation) -> None:
    """Drop rows that no stage can use: without prompt or answer, with roles out of order, pairs of equal answers."""
    rows.run("insert into dropped select row, 'malformed', malformed from texts where malformed is not null")


def drop_by_length(rows: Curation, min_length: int, max_length: int | None) -> None:
    """Drop rows whose prompt and completions together have too few or too many characters."""
    rows.run(
        """insert into dropped select row, 'length', length || ' characters'
           from kept where length < $1 or length > coalesce($2, length)""",
        min_length,
        max_length,
    )
