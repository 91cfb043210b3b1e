"""Manifests as plain dictionaries, which projections over thousands of artifacts read without validation."""

import json
import os
import re
from pathlib import Path
from typing import TypedDict, cast

from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.references import ArtifactType


class FileRecord(TypedDict):
    """A file of an output, as in `schemas.manifest.FileDigest`."""

    path: str
    size: int
    md5: str
    sha256: str


class OutputRecord(TypedDict):
    """A named output, as in `schemas.manifest.Output`."""

    type: ArtifactType
    digest: str
    dvc: str
    files: list[FileRecord]


class GivenRecord(TypedDict):
    """What a port received, as in `schemas.manifest.InputRecord`."""

    port: str
    step: str | None
    key: str | None
    output: str | None
    source: str | None
    digest: str
    type: ArtifactType


class Record(TypedDict):
    """A manifest as JSON, with the folder of its artifact."""

    key: str
    kind: str
    identity: JsonObject
    step: str
    recipe: str
    run: str
    seed: int
    inputs: list[GivenRecord]
    outputs: dict[str, OutputRecord]
    metrics: dict[str, float | int | bool | str | None]
    details: JsonObject
    commit: str | None
    dirty: bool
    versions: dict[str, str]
    started: str
    seconds: float
    folder: str


def read_record(folder: Path | str) -> Record | None:
    """Return the manifest in an artifact's folder, or None if it is missing or damaged."""
    path = os.path.join(folder, "manifest.json")  # noqa: PTH118 — thousands of these: plain strings are twice as fast
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            record = json.loads(file.read())
        _ = record["key"], record["started"], record["outputs"], record["inputs"], record["details"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    record["folder"] = str(folder)
    return record


def _open_without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_records(layout: Layout) -> list[Record]:
    """Return all manifests but damaged ones, oldest first.

    For queries about a few of them, use `lineage.catalogue.index`.
    """
    artifacts = layout.state / "artifacts"
    if not artifacts.is_dir():
        return []
    with os.scandir(artifacts) as entries:
        folders = [entry.path for entry in entries]
    records = [record for record in map(read_record, folders) if record is not None]
    return sorted(records, key=lambda record: (record["started"], record["key"]))


def slim_record(record: Record) -> Record:
    """Return the parts that queries over many artifacts need: of the details, for example, only drops and gates."""
    details = {name: record["details"][name] for name in ("dropped", "gates") if name in record["details"]}
    identity = {"settings": record["identity"].get("settings", {})}
    return cast(Record, {**record, "identity": identity, "details": details})


def read_lines(path: Path) -> list[JsonObject]:
    """Return the records of a file of JSON lines, without a truncated last line; empty if there is no file."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1] if line.strip()]


SHARD = re.compile(r"-\d{5,}(?=\.parquet$)")


def table_name(path: str) -> str:
    """Return the name that the table of a file would have if it were one file."""
    return SHARD.sub("", path.rsplit("/", 1)[-1])


def table_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a table in a folder, in the order of their rows."""
    return sorted(path for path in folder.glob("*.parquet") if table_name(path.name) == name)
