"""The content of a manifest as MLflow's own entities."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

from lineage.catalogue.projection import read_curve_points
from lineage.records import GivenRecord, Record
from schemas.base import JsonObject
from schemas.references import TABLE_TYPES

DIGEST = 36
"""Maximum length of a dataset's digest in MLflow."""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Return nested settings as dotted names: {"a": {"b": [1]}} is {"a.b.0": 1}."""
    flat: JsonObject = {}
    for name, value in settings.items():
        if isinstance(value, list):
            value = {str(i): item for i, item in enumerate(value)}
        flat |= (
            flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
        )
    return flat


def make_name(name: str) -> str:
    """Return a name that MLflow accepts: letters, digits, `_`, `-`, `.` and blanks."""
    return re.sub(r"[^\w\-. ]", "_", name)


def make_model_name(step: str) -> str:
    """Return a name that MLflow accepts for a logged model: no full stops either."""
    return make_name(step).replace(".", "_")


def to_milliseconds(when: str) -> int:
    """Return a time in ISO 8601 as milliseconds since the epoch."""
    return int(datetime.fromisoformat(when).timestamp() * 1000)


def make_final_metrics(record: Record, step: str | None = None) -> list[Metric]:
    """Return the final numbers of a step, below its name when one is given; texts are left out."""
    end = to_milliseconds(record["started"]) + int(record["seconds"] * 1000)
    numbers = {n: float(v) for n, v in record["metrics"].items() if isinstance(v, (bool, int, float))}
    prefix = f"{make_name(step)}/" if step else ""
    return [Metric(prefix + make_name(name), value, end, 0) for name, value in numbers.items()]


def make_curve_metrics(folder: Path) -> list[Metric]:
    """Return every point of an artifact's curves, with its own time and step, as curves/<figure>."""
    return [
        Metric(f"curves/{make_name(figure)}", value, int((time or 0) * 1000), step)
        for step, time, figure, value in read_curve_points(folder)
    ]


def make_datasets(record: Record) -> list[DatasetInput]:
    """Return the tables that a step read, by name and digest; the source says where they are."""
    return [_make_dataset(input_record) for input_record in record["inputs"] if input_record["type"] in TABLE_TYPES]


def _make_dataset(record: GivenRecord) -> DatasetInput:
    where = {name: record[name] for name in ("step", "key", "output", "source", "digest") if record.get(name)}
    name = record.get("source") or f"{record['step']}.{record['output']}"
    dataset = Dataset(name[:500], record["digest"][:DIGEST], "posttrain", json.dumps(where, sort_keys=True))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", record["port"][:500])])
