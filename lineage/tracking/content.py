"""The content of a manifest as MLflow's own entities."""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

from lineage.catalogue.projection import CurvePoint, read_curve_points
from lineage.digests import digest_of
from lineage.records import GivenRecord, Record
from lineage.tracking.curve_names import make_curve_name
from schemas.base import JsonObject
from schemas.plan import Plan, Step
from schemas.references import TABLE_TYPES

DIGEST = 36
"""Maximum length of a dataset's digest in MLflow."""
PARAM_NAME, PARAM_VALUE = 250, 6000
"""Maximum characters of a parameter's name and value in MLflow."""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Return nested settings as dotted names: {"a": {"b": [1]}} is {"a.b.0": 1}."""
    flat: JsonObject = {}
    for name, value in settings.items():
        if isinstance(value, list) and value:
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


def make_step_params(step: Step) -> tuple[list[Param], JsonObject]:
    """Return the settings and the seed of a step as parameters, and the settings of which a part did not fit."""
    return _make_params(flatten(step.settings | {"seed": step.seed}))


def make_run_params(plan: Plan) -> tuple[list[Param], JsonObject]:
    """Return what may differ between two runs as parameters, and the ones of which a part did not fit.

    The parameters are the recipe's settings, without empty ones, and `keys.<step>`: it differs where data from outside
    or code do, too.
    """
    stated = {name: value for name, value in flatten(plan.resolved).items() if value not in (None, "", [], {})}
    keys = {f"keys.{step.name}": step.key[:16] for step in plan.steps}
    return _make_params({"recipe": plan.recipe, "profile": plan.profile or "", "seed": "", **stated, **keys})


def _make_params(settings: JsonObject) -> tuple[list[Param], JsonObject]:
    """Return parameters with unique names; one that is too long ends with the digest of all of it."""
    params: dict[str, Param] = {}
    cut: JsonObject = {}
    for name, value in settings.items():
        accepted, text = make_name(name), str(value)
        if accepted in params or len(accepted) > PARAM_NAME:
            accepted = f"{accepted[: PARAM_NAME - 9]}_{digest_of(name)[:8]}"
        if len(text) > PARAM_VALUE:
            ending = f" ... (sha256 {hashlib.sha256(text.encode()).hexdigest()}, {len(text)} characters)"
            text, cut[name] = text[: PARAM_VALUE - len(ending)] + ending, value
        params[accepted] = Param(accepted, text)
    return list(params.values()), cut


def make_curve_metrics(folder: Path) -> list[Metric]:
    """Return every point of an artifact's curves."""
    return [make_point_metric(point) for point in read_curve_points(folder)]


def make_point_metric(point: CurvePoint) -> Metric:
    """Return a point of a curve, with its own time and step; its name is that of all trackers, `train/loss`."""
    step, time, figure, value = point
    name = "/".join(map(make_name, make_curve_name(figure).split("/")))
    return Metric(name, value, int((time or 0) * 1000), step)


def make_datasets(record: Record) -> list[DatasetInput]:
    """Return the tables that a step read, by name and digest; the source says where they are."""
    return [_make_dataset(input_record) for input_record in record["inputs"] if input_record["type"] in TABLE_TYPES]


def _make_dataset(record: GivenRecord) -> DatasetInput:
    where = {name: record[name] for name in ("step", "key", "output", "source", "digest") if record.get(name)}
    name = record.get("source") or f"{record['step']}.{record['output']}"
    dataset = Dataset(name[:500], record["digest"][:DIGEST], "posttrain", json.dumps(where, sort_keys=True))
    return DatasetInput(dataset, [InputTag("mlflow.data.context", record["port"][:500])])
