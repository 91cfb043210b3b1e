"""kind: data — rows of files, of the hub and of other stages, converted into posttrain's own rows."""

import json
import tempfile
from pathlib import Path

from learning.data.rows import SCHEMAS, open_row_writer
from learning.data.sources.collect import drop_repeated, find_repeated, scan_converted, write_converted
from learning.data.sources.dropped import DroppedRows
from learning.data.sources.source_rows import SourceRows
from schemas.errors import StepError
from schemas.stages.data import Data
from tasks.context import Context, Result


def run(stage: Data, context: Context) -> Result:
    """Write the rows that fit to output `data`, in the order of sources and files, and the rest to output `report`.

    Metrics: `rows` (read), `kept`, `dropped` and `dropped.<reason>`. Raises StepError for a file that cannot be read,
    for rows that do not fit unless `on_bad_row` says otherwise, and if no row is left.
    """
    sources = [
        SourceRows(context.input(f"sources.{i}.from"), source, stage.emit) for i, source in enumerate(stage.sources)
    ]
    with (
        tempfile.TemporaryDirectory(dir=context.folder, prefix="spill-") as spill,
        DroppedRows(context.output("report")) as dropped,
    ):
        converted = Path(spill, "rows")
        converted.mkdir()
        write_converted(sources, stage.emit, converted, dropped)
        repeated = find_repeated(converted, Path(spill), context.num_threads)
        if len(repeated):
            drop_repeated(converted, repeated, dropped, sources)
        if not (kept := sum(source.kept for source in sources)):
            raise StepError(f"data: none of {sum(source.read for source in sources)} rows is left")
        with open_row_writer(context.output("data"), stage.emit) as writer:
            for batch in scan_converted(converted, SCHEMAS[stage.emit].names, repeated):
                writer.write(batch)
    return report(stage, context, sources, dropped, kept)


def report(stage: Data, context: Context, sources: list[SourceRows], dropped: DroppedRows, kept: int) -> Result:
    """Write report.json and return the metrics: rows read are those kept and those dropped."""
    rows = sum(source.read for source in sources)
    by_reason = {reason: number for reason, number in dropped.counts.items() if number}
    described = [
        {
            "format": source.format,
            "files": len(source.files),
            "rows": source.read,
            "kept": source.kept,
            "dropped": source.read - source.kept,
        }
        for source in sources
    ]
    details = {"type": stage.emit, "rows": rows, "kept": kept, "dropped": by_reason, "sources": described}
    (context.output("report") / "report.json").write_text(json.dumps(details, indent=1) + "\n")
    reasons = {f"dropped.{reason}": number for reason, number in by_reason.items()}
    return Result({"rows": rows, "kept": kept, "dropped": rows - kept, **reasons}, details)
