"""Differences in the data of two runs: outside sources by their digests, tables row by row."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lineage.artifacts.store import Store
from lineage.records import table_files
from schemas.manifest import Manifest
from schemas.plan import Plan, Step
from schemas.references import TABLE_TYPES

LARGEST = 500_000
"""Most rows of a table to compare row by row; rows of larger tables are only counted."""


@dataclass(frozen=True)
class DataChange:
    """Data that differs: an outside source (`port`), or a table that a step produced (`output`)."""

    step: str
    port: str | None = None
    output: str | None = None
    source: tuple[str | None, str | None] | None = None
    digest: tuple[str | None, str | None] = (None, None)
    rows: tuple[int, int] | None = None
    """For tables: number of rows before and after."""
    added: tuple[str, ...] | None = None
    """Ids of new rows, one entry per row; None if there are too many rows or rows have no ids."""
    removed: tuple[str, ...] | None = None
    """Ids of removed rows."""
    changed: tuple[str, ...] | None = None
    """Ids of rows whose content changed."""


def compare_data(
    before: Plan, after: Plan, old: dict[str, Manifest], new: dict[str, Manifest], store: Store
) -> Iterator[DataChange]:
    """Yield the data that differs between the steps that both plans have."""
    names = {step.name for step in before.steps}
    for step in (step for step in after.steps if step.name in names):
        yield from _compare_sources(before.step(step.name), step)
        if (one := old.get(step.name)) and (other := new.get(step.name)):
            yield from _compare_tables(step.name, one, other, store)


def _compare_sources(before: Step, after: Step) -> Iterator[DataChange]:
    old = {i.port: i for i in before.inputs if i.source is not None}
    for step_input in after.inputs:
        was = old.get(step_input.port)
        if (
            step_input.source is None
            or was is None
            or (was.source, was.digest) == (step_input.source, step_input.digest)
        ):
            continue
        yield DataChange(
            after.name,
            port=step_input.port,
            source=(was.source, step_input.source),
            digest=(was.digest, step_input.digest),
        )


def _compare_tables(step: str, old: Manifest, new: Manifest, store: Store) -> Iterator[DataChange]:
    for name, made in new.outputs.items():
        was = old.outputs.get(name)
        if was is None or was.type not in TABLE_TYPES or was.digest == made.digest:
            continue
        change = DataChange(step, output=name, digest=(was.digest, made.digest))
        yield _add_rows(change, *(store.output_folder(m.kind, m.key, name) for m in (old, new)))


def _add_rows(change: DataChange, before: Path, after: Path) -> DataChange:
    """Return a change with counts of rows and, for small tables with ids, the ids of changed rows."""
    import pyarrow.parquet as pq

    sides = [table_files(folder, "rows.parquet") for folder in (before, after)]
    if not all(sides):
        return change
    first, second = (sum(pq.read_metadata(path).num_rows for path in paths) for paths in sides)
    sizes = (first, second)
    if max(sizes) > LARGEST or any("id" not in pq.read_schema(paths[0]).names for paths in sides):
        return replace(change, rows=sizes)
    old, new = (_index_rows([row for path in paths for row in pq.read_table(path).to_pylist()]) for paths in sides)
    count = [Counter({name: len(rows) for name, rows in side.items()}) for side in (old, new)]
    return replace(
        change,
        rows=sizes,
        added=tuple(sorted((count[1] - count[0]).elements())),
        removed=tuple(sorted((count[0] - count[1]).elements())),
        changed=tuple(sorted(name for name in new if count[0][name] == count[1][name] and old[name] != new[name])),
    )


def _index_rows(rows: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Return the contents of the rows of every id, sorted."""
    rows_by_id: dict[str, list[str]] = {}
    for row in rows:
        rows_by_id.setdefault(str(row["id"]), []).append(json.dumps(row, sort_keys=True, default=str))
    return {name: sorted(texts) for name, texts in rows_by_id.items()}
