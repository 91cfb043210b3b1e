"""kind: data — rows of files, of the hub and of other stages, converted into posttrain's own rows."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from learning.data.expectations import measure_expectations, require_expectations
from learning.data.rows import open_row_writer
from learning.data.sources.collect import drop_repeated, find_repeated, list_converted, scan_chosen, write_converted
from learning.data.sources.curriculum import count_segments, list_bounds, order_sources
from learning.data.sources.dropped import DroppedRows
from learning.data.sources.mixture import choose_rows, count_chosen, count_usable, draw_rows, name_sources
from learning.data.sources.reorder import scan_in_order
from learning.data.sources.source_rows import SourceRows
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.stages.data import Data, Source
from tasks.context import Context, Result


def run(stage: Data, context: Context) -> Result:
    """Write the rows of the mixture to output `data`, in the order of sources and files, and a report to `report`.

    Metrics: `rows` (read), `kept` (those that fit), `dropped`, `dropped.<reason>`, and `mixed`, the rows of the output.
    Raises StepError for a file that cannot be read, for rows that do not fit unless `on_bad_row` says otherwise, and if
    no row is left.
    """
    sources = [open_source(source, f"sources.{i}", stage, context) for i, source in enumerate(stage.sources)]
    names = name_sources(stage, [source.stem for source in sources])
    with (
        tempfile.TemporaryDirectory(dir=context.folder, prefix="spill-") as spill,
        DroppedRows(context.output("report")) as dropped,
    ):
        converted = Path(spill, "rows")
        converted.mkdir()
        write_converted(sources, names, stage.emit, converted, dropped)
        repeated = find_repeated(converted, Path(spill), context.num_threads)
        if len(repeated):
            drop_repeated(converted, stage.emit, repeated, dropped, sources)
        if not any(source.kept for source in sources):
            raise StepError(f"data: none of {sum(source.read for source in sources)} rows is left")
        kept = [source.kept for source in sources]
        left = list_converted(converted, stage.emit, sum(source.read for source in sources), repeated)
        if any(source.during for source in stage.sources):
            segments = count_segments(stage, count_usable(stage, kept))
            chosen = np.sum(segments, 0).tolist()
            order = order_sources(segments, context.seed)
            rows = place_rows(stage, kept, chosen, left, order, context.seed)
            batches = scan_in_order(converted, stage.emit, rows, Path(spill))
        else:
            segments, chosen = [], count_chosen(stage, kept)
            times = choose_all(stage, sources, chosen, left, context.seed)
            batches = scan_chosen(converted, stage.emit, times)
        with open_row_writer(context.output("data"), stage.emit) as writer:
            for batch in batches:
                writer.write(batch)
        made = context.output("data")
        expected = measure_expectations(stage.expect, made, stage.emit, Path(spill), context.num_threads)
        require_expectations("data", expected)
    result = report(stage, context, sources, names, chosen, dropped, segments)
    return replace(result, details={**result.details, "expectations": expected})


def open_source(source: Source, port: str, stage: Data, context: Context) -> SourceRows:
    """Return the rows of the source at a port of the stage."""
    tables = {name: context.input(f"{port}.tables.{name}") for name in source.tables}
    return SourceRows(context.input(f"{port}.from"), source, stage.emit, tables, context.folder)


def place_rows(
    stage: Data, kept: list[int], chosen: list[int], left: np.ndarray, order: np.ndarray, seed: int
) -> np.ndarray:
    """Return the number of the row at each place of a curriculum, whose sources are `order`."""
    rows, start = np.empty(len(order), np.int64), 0
    for i, (count, number) in enumerate(zip(chosen, kept, strict=True)):
        rows[order == i] = left[start + draw_rows(stage.sources[i], number, count, (seed, i))]
        start += number
    return rows


def choose_all(stage: Data, sources: list[SourceRows], chosen: list[int], left: np.ndarray, seed: int) -> np.ndarray:
    """Return how often each row that was read is in the mixture; `left` are the numbers of those that fit, sorted."""
    times, start = np.zeros(sum(source.read for source in sources), np.int32), 0
    for i, (source, count) in enumerate(zip(sources, chosen, strict=True)):
        own = left[start : start + source.kept]
        start += source.kept
        times[own] = choose_rows(stage.sources[i], source.kept, count, (seed, i))
    return times


def report(
    stage: Data,
    context: Context,
    sources: list[SourceRows],
    names: list[str],
    chosen: list[int],
    dropped: DroppedRows,
    segments: list[list[int]],
) -> Result:
    """Write report.json and return the metrics: rows read are those kept and those dropped.

    Of a curriculum, `segments` are the rows of each source between the bounds of all `during`.
    """
    rows, kept = sum(source.read for source in sources), sum(source.kept for source in sources)
    by_reason = {reason: number for reason, number in dropped.counts.items() if number}
    described = [
        {
            "name": name,
            "format": source.format,
            "files": len(source.files),
            "rows": source.read,
            "kept": source.kept,
            "dropped": source.read - source.kept,
            "weight": source.source.weight,
            **({"during": list(source.source.during)} if source.source.during else {}),
            "mixed": count,
            "share": count / sum(chosen),
        }
        for source, name, count in zip(sources, names, chosen, strict=True)
    ]
    details: JsonObject = {"type": stage.emit, "rows": rows, "kept": kept, "dropped": by_reason, "sources": described}
    if segments:
        bounds = zip(list_bounds(stage), segments, strict=True)
        details["curriculum"] = [{"from": a, "to": b, "rows": counts} for (a, b), counts in bounds]
    (context.output("report") / "report.json").write_text(json.dumps(details, indent=1) + "\n")
    reasons = {f"dropped.{reason}": number for reason, number in by_reason.items()}
    return Result({"rows": rows, "kept": kept, "dropped": rows - kept, "mixed": sum(chosen), **reasons}, details)
