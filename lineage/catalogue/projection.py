"""Manifests, curves and events as Arrow tables, one function per table of the catalogue."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from lineage.layout import Layout
from lineage.records import Record, read_lines

CurvePoint = tuple[int, float | None, str, float]
"""A point of a curve: step, time in seconds since the epoch, figure, value."""
STEPS = (
    "key",
    "kind",
    "step",
    "recipe",
    "run",
    "seed",
    "started",
    "seconds",
    "cpu_seconds",
    "gpu_seconds",
    "peak_rss",
    "commit",
    "dirty",
)
TYPES = {
    "seed": pa.int64(),
    "seconds": pa.float64(),
    "cpu_seconds": pa.float64(),
    "gpu_seconds": pa.float64(),
    "peak_rss": pa.int64(),
    "dirty": pa.bool_(),
    "bytes": pa.int64(),
    "files": pa.int64(),
    "size": pa.int64(),
    "value": pa.float64(),
    "at_step": pa.int64(),
    "time": pa.float64(),
    "number": pa.int64(),
}


def _make_table(columns: tuple[str, ...], rows: list[tuple]) -> pa.Table:
    schema = pa.schema([(name, TYPES.get(name, pa.string())) for name in columns])
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return pa.table([pa.array(v, type=f.type) for v, f in zip(values, schema, strict=True)], schema=schema)


def steps_table(records: list[Record]) -> pa.Table:
    """Return one row per artifact; `settings` is JSON text."""
    rows = [
        (*(r.get(name) for name in STEPS), json.dumps(r["identity"].get("settings", {}), sort_keys=True), r["folder"])
        for r in records
    ]
    return _make_table((*STEPS, "settings", "folder"), rows)


def inputs_table(records: list[Record]) -> pa.Table:
    """Return one row per port of an artifact's step."""
    names = ("port", "step", "key", "output", "source", "digest", "type")
    rows = [(r["key"], r["step"], *(i.get(name) for name in names)) for r in records for i in r["inputs"]]
    return _make_table(("key", "step", "port", "from_step", "from_key", "output", "source", "digest", "type"), rows)


def outputs_table(records: list[Record]) -> pa.Table:
    """Return one row per named output."""
    rows = [
        (
            r["key"],
            r["step"],
            name,
            o["type"],
            o["digest"],
            o["dvc"],
            sum(f["size"] for f in o["files"]),
            len(o["files"]),
        )
        for r in records
        for name, o in r["outputs"].items()
    ]
    return _make_table(("key", "step", "output", "type", "digest", "dvc", "bytes", "files"), rows)


def files_table(records: list[Record]) -> pa.Table:
    """Return one row per file."""
    rows = [
        (r["key"], r["step"], name, f["path"], f["size"], f["md5"], f["sha256"])
        for r in records
        for name, o in r["outputs"].items()
        for f in o["files"]
    ]
    return _make_table(("key", "step", "output", "path", "size", "md5", "sha256"), rows)


def metrics_table(records: list[Record]) -> pa.Table:
    """Return one row per final metric; values that are not numbers are in `text`."""
    rows = [(r["key"], r["step"], name, *_split_value(value)) for r in records for name, value in r["metrics"].items()]
    return _make_table(("key", "step", "metric", "value", "text"), rows)


def curves_table(records: list[Record]) -> pa.Table:
    """Return one row per point of a curve."""
    rows = [
        (r["key"], r["step"], at, figure, value, time)
        for r in records
        for at, time, figure, value in read_curve_points(Path(r["folder"]))
    ]
    return _make_table(("key", "step", "at_step", "figure", "value", "time"), rows)


def read_curve_points(folder: Path) -> Iterator[CurvePoint]:
    """Yield every point in an artifact's metrics.jsonl."""
    for line in read_lines(folder / "metrics.jsonl"):
        yield from list_curve_points(line)


def list_curve_points(line: Mapping[str, Any]) -> Iterator[CurvePoint]:
    """Yield the points of one line of metrics.jsonl."""
    for figure, value in line.items():
        if figure not in ("step", "time") and isinstance(value, (int, float)):
            yield int(line["step"]), line.get("time"), figure, float(value)


def events_table(layout: Layout) -> pa.Table:
    """Return one row per event of a run, in order; `event` is JSON text."""
    rows = [
        (
            path.parent.name,
            number,
            event.get("type"),
            _as_text(event.get("step")),
            event.get("state"),
            json.dumps(event),
        )
        for path in sorted(layout.state.glob("runs/*/events.jsonl"))
        for number, event in enumerate(read_lines(path))
    ]
    return _make_table(("run", "number", "type", "step", "state", "event"), rows)


def _split_value(value: Any) -> tuple[float | None, str | None]:
    return (float(value), None) if isinstance(value, (bool, int, float)) else (None, value)


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


MANIFEST_TABLES: dict[str, Callable[[list[Record]], pa.Table]] = {
    "steps": steps_table,
    "inputs": inputs_table,
    "outputs": outputs_table,
    "files": files_table,
    "metrics": metrics_table,
    "curves": curves_table,
}
"""The tables that come from manifests and their artifacts' curves."""
