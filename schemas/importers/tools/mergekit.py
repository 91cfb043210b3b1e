"""mergekit's configurations, whose keys the kind merge shares."""

from typing import Any

from schemas.base import JsonObject
from schemas.importers.common.draft import Line
from schemas.importers.common.job import Job, Tool
from schemas.importers.common.references import refer
from schemas.importers.known_keys.trees import list_keys

METHODS = ("linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties", "passthrough", "ram", "ram_plus")
KEYS = list_keys(
    {
        "": "merge_method base_model dtype out_dtype tokenizer_source tokenizer chat_template parameters models slices",
        "parameters": "**",
        "models.*": "model",
        "models.*.model": "**",
        "models.*.parameters": "**",
        "slices.*": "base_model residual_weight",
        "slices.*.parameters": "**",
        "slices.*.sources.*": "model layer_range",
        "slices.*.sources.*.layer_range": "*",
        "slices.*.sources.*.parameters": "**",
        "tokenizer": "source pad_to_multiple_of",
        "tokenizer.tokens": "**",
        "modules": "**",
    }
)


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    stage = job.draft.stage("merged", "merge")
    method = str(leaves.get("merge_method", ""))
    if method not in METHODS:
        message = f"merge_method {method} has no counterpart" if method else "the configuration names no merge_method"
        raise job.fail("merge_method", message, f"there are {', '.join(METHODS)}")
    if leaves.has("modules"):
        raise job.fail("modules", "merges of parts of a model (`modules`) are not there", "merge whole models")
    stage.copy("merge_method", "merge_method", str)
    if leaves.has("base_model"):
        stage.put("base_model", _refer(job, "base_model"), "base_model")
    if isinstance(models := leaves.get("models"), list):
        stage.put("models", [_read_model(job, f"models.{i}", item) for i, item in enumerate(models)], "models")
    if isinstance(slices := leaves.get("slices"), list):
        stage.put("slices", [_read_slice(job, f"slices.{i}", item) for i, item in enumerate(slices)], "slices")
    for key in ("parameters", "dtype", "out_dtype"):
        if leaves.has(key):
            stage.copy(key, key)
    _map_tokenizer(job)
    for leaf in leaves.leaves_of("chat_template"):
        leaves.account(leaf, "default differs", f"theirs {leaves.values[leaf]}; ours the first model's template")
    if "tokenizer_source" in leaves.tree and leaves.get("tokenizer_source") in ("base", "union"):
        stage.lines["tokenizer_source"] = Line(leaves.get("tokenizer_source"), "tokenizer_source")


def _map_tokenizer(job: Job) -> None:
    leaves = job.leaves
    for key in ("tokenizer_source", "tokenizer.source"):
        same = leaves.get(key) in ("base", "union")
        note = "all models must have the same tokenizer, which the result gets"
        leaves.account(key, "mapped" if same else "default differs", f"theirs {leaves.get(key)}; ours: {note}")
    leaves.unsupported("tokenizer.tokens", "embeddings of single tokens are merged as all others")
    leaves.unsupported("tokenizer.pad_to_multiple_of", "the vocabulary keeps its size")


def _refer(job: Job, key: str) -> str:
    """Return the reference of a model, written as text or as mergekit's map. Raise RecipeError."""
    value = job.leaves.get(key)
    if isinstance(value, dict):
        inner = value.get("model", value)
        name = inner.get("path") if isinstance(inner, dict) else inner
        revision = inner.get("revision") if isinstance(inner, dict) else None
    else:
        name, revision = str(value).partition("@")[0], str(value).partition("@")[2] or None
    if "+" in str(name):
        advice = "merge the adapter first: a folder of an adapter is a model, too (docs/adapters.md)"
        raise job.fail(key, f"{name}: a model with an adapter", advice)
    try:
        reference = refer(name, job.places, revision)
    except ValueError as error:
        raise job.fail(key, str(error), "name a folder or a model of the hub") from None
    job.leaves.mapped(key, f"merged.{key}", reference)
    return reference


def _read_model(job: Job, at: str, item: Any) -> JsonObject:
    if not isinstance(item, dict) or "model" not in item:
        raise job.fail(at, "names no model", "write `- model: org/name`")
    made: JsonObject = {"model": _refer(job, f"{at}.model")}
    return made | _read_parameters(job, at, item)


def _read_parameters(job: Job, at: str, item: JsonObject) -> JsonObject:
    if not isinstance(item.get("parameters"), dict):
        return {}
    return {"parameters": job.leaves.mapped(f"{at}.parameters", f"merged.{at}.parameters")}


def _read_slice(job: Job, at: str, item: Any) -> JsonObject:
    sources = item.get("sources") if isinstance(item, dict) else None
    if not isinstance(sources, list):
        raise job.fail(at, "names no sources", "write `sources: [{model: org/name, layer_range: [0, 8]}]`")
    made = []
    for index, source in enumerate(sources):
        where = f"{at}.sources.{index}"
        read = _read_model(job, where, source)
        job.leaves.mapped(f"{where}.layer_range", f"merged.{where}.layer_range")
        made.append({"model": read.pop("model"), "layer_range": source.get("layer_range"), **read})
    return {"sources": made, **_read_parameters(job, at, item)}


TOOL = Tool(
    "mergekit",
    "mergekit",
    KEYS,
    ("merge_method", "slices", "models", "tokenizer_source"),
    convert,
    ("mergekit-yaml",),
    {},
    {"slices.*.residual_weight": "layers have no weight of their residual stream"},
)
"""The tool."""
