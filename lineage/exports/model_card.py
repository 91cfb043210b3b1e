"""The model card inside a bill of materials: architecture, data, and every evaluation with its intervals."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from lineage.exports.scope import find_tables
from lineage.records import Record
from schemas.base import JsonObject
from schemas.references import MODEL_TYPES
from schemas.stages.union import traits_of

ALL = "all"


def make_model_card(record: Record, output: str, by_key: dict[str, Record], evaluations: list[Record]) -> JsonObject:
    """Return the card of a model among the outputs of a step."""
    parameters: JsonObject = {
        "task": "text-generation",
        "datasets": [{"ref": r} for r in _find_data(record, by_key)],
    }
    if (approach := traits_of(record["kind"]).learning_approach) is not None:
        parameters["approach"] = {"type": approach}
    config = _read_config(record, output)
    if "model_type" in config:
        parameters["architectureFamily"] = str(config["model_type"])
    if config.get("architectures"):
        parameters["modelArchitecture"] = str(config["architectures"][0])
    card: JsonObject = {"modelParameters": parameters}
    if metrics := [metric for evaluation in evaluations for metric in _make_metrics(record, evaluation)]:
        card["quantitativeAnalysis"] = {"performanceMetrics": metrics}
    settings = record["identity"].get("settings", {})
    if settings:
        text = json.dumps(settings, sort_keys=True)
        card["properties"] = [{"name": "posttrain:settings", "value": text}]
    return card


def make_data_entry(record: Record, output: str) -> JsonObject:
    """Return rows and bytes of an output that is no model."""
    described = record["outputs"][output]
    properties = [{"name": "posttrain:bytes", "value": str(sum(file["size"] for file in described["files"]))}]
    files = [path for path in find_tables(record, output) if path.is_file()]
    if len(files) == 1:
        properties.append({"name": "posttrain:rows", "value": str(pq.read_metadata(files[0]).num_rows)})
    for reason, number in sorted((record["details"].get("dropped") or {}).items()):
        properties.append({"name": f"posttrain:dropped:{reason}", "value": str(number)})
    return {
        "type": "dataset",
        "name": f"{record['recipe']}.{record['step']}.{output}",
        "contents": {"properties": properties},
    }


def _find_data(record: Record, by_key: dict[str, Record]) -> list[str]:
    """Return references to the data that a model and its ancestors were trained on, each once."""
    references, waiting, visited = [], [record], set()
    while waiting:
        for input_record in waiting.pop()["inputs"]:
            if input_record["type"] not in MODEL_TYPES:
                references.append(
                    f"source/{input_record['digest']}"
                    if input_record.get("source")
                    else f"{input_record['key']}/{input_record['output']}"
                )
            key = input_record.get("key")
            if key in by_key and key not in visited:
                visited.add(key)
                waiting.append(by_key[key])
    return sorted(set(references))


def _read_config(record: Record, output: str) -> JsonObject:
    path = Path(record["folder"], "outputs", output, "config.json")
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _make_metrics(record: Record, evaluation: Record) -> list[JsonObject]:
    """Return the rows of an evaluation's table about this model."""
    ports = [i["port"] for i in evaluation["inputs"] if i.get("key") == record["key"]]
    names = {port.rpartition(".")[2] for port in ports}
    metrics = []
    for line in evaluation["details"].get("table", []):
        if line["model"] not in names:
            continue
        metric = {
            "type": f"{line['metric']} ({evaluation['recipe']}.{evaluation['step']})",
            "value": repr(line["value"]),
        }
        if line["family"] != ALL:
            metric["slice"] = line["family"]
        bounds = {"lowerBound": repr(line["low"]), "upperBound": repr(line["high"])}
        metrics.append(metric | {"confidenceInterval": bounds})
    return metrics
