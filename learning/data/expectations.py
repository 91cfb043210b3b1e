"""Expectations of a table of rows, measured with DuckDB on the files that a step has written."""

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

import duckdb

from learning.data.rows import SCHEMAS
from learning.data.shards import find_shards
from schemas.errors import StepError
from schemas.expectations import CONVERSATIONS, Measure, parse_bound, parse_measure

MEMORY = "512MiB"
"""Memory of DuckDB; beyond it, DuckDB spills to disk."""
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Expectation(TypedDict):
    """An expectation and the number that was measured; None where no row has a value."""

    name: str
    expected: str
    measured: float | None
    holds: bool


def measure_expectations(
    expect: Mapping[str, float | str], folder: Path, artifact_type: str, spill: Path, num_threads: int
) -> list[Expectation]:
    """Return every expectation of the rows in a folder, measured. Raise StepError for a column that they lack."""
    if not expect:
        return []
    measures = {name: parse_measure(name) for name in expect}
    for name, measure in measures.items():
        if measure.column and measure.column not in SCHEMAS[artifact_type].names:
            raise StepError(f"expect: `{name}`: rows of type {artifact_type} have no column {measure.column}")
    config = {"threads": num_threads, "memory_limit": MEMORY, "temp_directory": str(spill)}
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(":memory:", config={**config, **offline}) as connection:
        files = [str(path) for path in find_shards(folder)]
        columns = {row[0] for row in connection.execute("describe from read_parquet($1)", [files]).fetchall()}
        expectations: list[Expectation] = []
        for name, measure in measures.items():
            # A column that a table may lack, as `source`, has no values.
            sql = _write_expression(measure) if measure.column in {"", *columns} else _write_expression_of_none(measure)
            row = connection.execute(f"select {sql} from read_parquet($1)", [files]).fetchone()
            value = None if row is None or row[0] is None else float(row[0])
            bound = parse_bound(expect[name])
            holds = value is not None and COMPARE[bound.comparison](value, bound.number)
            expectations.append(
                {
                    "name": name,
                    "expected": f"{bound.comparison} {bound.number:.12g}",
                    "measured": value,
                    "holds": holds,
                }
            )
    return expectations


def require_expectations(kind: str, expectations: list[Expectation]) -> None:
    """Raise StepError with every expectation that does not hold, and what was measured."""
    failed = [one for one in expectations if not one["holds"]]
    if failed:
        numbers = ["without a value" if one["measured"] is None else f"{one['measured']:.6g}" for one in failed]
        pairs = zip(failed, numbers, strict=True)
        lines = "".join(f"\n    {one['name']} is {number}, expected {one['expected']}" for one, number in pairs)
        raise StepError(f"{kind}: {len(failed)} of {len(expectations)} expectations do not hold:{lines}")


def _write_expression(measure: Measure) -> str:
    """Return the SQL of a measure; columns are those of a fixed list, and no text of a recipe is in it."""
    column = measure.column
    if measure.function == "rows":
        return "count(*)"
    if column in CONVERSATIONS:
        empty = (
            f"({column} is null or len(list_filter({column}, lambda m: "
            "trim(coalesce(m.content, '') || coalesce(m.more, '')) <> '')) = 0)"
        )
        length = f"coalesce(list_sum(list_transform({column}, lambda m: length(coalesce(m.content, '')))), 0)"
        value = f"md5({column}::varchar)"
    else:
        empty = f"({column} is null or {column}::varchar = '')"
        length = f"length(coalesce({column}::varchar, ''))"
        value = column
    if measure.function == "null":
        return f"count(*) filter ({empty})"
    if measure.function == "unique":
        return f"count(distinct {value}) / nullif(count(*), 0)"
    function = {"mean": "avg", "min": "min", "max": "max"}[measure.function]
    return f"{function}({length if measure.of_length else column})"


def _write_expression_of_none(measure: Measure) -> str:
    if measure.function == "null":
        return "count(*)"
    return "0" if measure.of_length or measure.function == "unique" else "null"
