"""The latest outputs of a recipe as plain folders, metrics and curves under data/runs/<recipe>/."""

import csv
import io
import json
import os
import shutil
import uuid
from pathlib import Path

from lineage.catalogue.projection import read_curve_points
from lineage.layout import Layout
from lineage.records import Record
from schemas.atomic_write import write_text_atomically


def runs_folder(layout: Layout, recipe: str) -> Path:
    """Return where the latest outputs of a recipe's steps lie."""
    return layout.root / "data" / "runs" / recipe


def materialise(folder: Path, step: str, record: Record) -> None:
    """Link a step's outputs to folder/<step>/<output> and write its metrics to folder/metrics/<step>.json.

    Files are hard links to the artifact's, made read-only; where the file system has no links, copies.
    """
    for output in record["outputs"]:
        _replace_folder(Path(record["folder"], "outputs", output), folder / step / output)
    write_if_changed(
        folder / "metrics" / f"{step}.json", json.dumps(record["metrics"], indent=1, sort_keys=True) + "\n"
    )


def write_curves(folder: Path, records: dict[str, Record], planned: set[str]) -> None:
    """Write all curves of the recipe into one table, folder/curves.csv: stage, figure, step, value.

    Rows of steps that are not `planned` stay as they are.
    """
    path, text = folder / "curves.csv", io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("stage", "figure", "step", "value"))
    before = list(csv.reader(path.read_text().splitlines()))[1:] if path.is_file() else []
    writer.writerows(row for row in before if row[0] not in planned)
    for step, record in records.items():
        for at, _, figure, value in read_curve_points(Path(record["folder"])):
            writer.writerow((step, figure, at, value))
    write_if_changed(path, text.getvalue())


def write_if_changed(path: Path, text: str) -> None:
    """Write atomically; an unchanged file keeps its modification time, so that DVC does not hash it again."""
    if path.is_file() and path.read_text() == text:
        return
    write_text_atomically(path, text)


def _replace_folder(source: Path, target: Path) -> None:
    if _have_same_files(source, target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}") for _ in range(2))
    shutil.copytree(source, fresh, copy_function=_link_or_copy)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    Path(target).chmod(0o444)


def _have_same_files(source: Path, target: Path) -> bool:
    """Return whether the target shows these very files: equal names, and links or copies with equal size and time."""
    return target.is_dir() and _stat_files(source) == _stat_files(target)


def _stat_files(folder: Path) -> dict[str, tuple[int, int]]:
    statuses = ((p.relative_to(folder).as_posix(), p.stat()) for p in folder.rglob("*") if p.is_file())
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in statuses}
