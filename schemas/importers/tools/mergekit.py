"""mergekit's configurations, whose keys the kind merge shares."""

import json
from typing import Any

from schemas.base import JsonObject
from schemas.importers.common.draft import Line, StageDraft
from schemas.importers.common.job import Job, Tool
from schemas.importers.common.references import refer
from schemas.importers.known_keys.trees import list_keys
from schemas.signatures import read_signature
from schemas.source.foreign_keys import spread
from schemas.suggestions import suggest
from schemas.use import MergeMethodUse

NUSLERP = "nuslerp"
UNIFORM: JsonObject = {"weight": 1.0}
NEAREST: dict[str, tuple[str, JsonObject, str]] = {
    "della": ("dare_ties", UNIFORM, "differences are dropped at random, whatever their size"),
    "della_linear": ("dare_linear", UNIFORM, "differences are dropped at random, whatever their size"),
    "breadcrumbs": ("task_arithmetic", UNIFORM, "no difference is dropped, neither the largest nor the smallest"),
    "breadcrumbs_ties": ("ties", UNIFORM, "the smallest differences are dropped, and none of the largest"),
    "model_breadcrumbs": ("task_arithmetic", UNIFORM, "no difference is dropped"),
    "sce": ("ties", UNIFORM, "weights are given, not computed from the differences"),
    "core_space": ("task_arithmetic", UNIFORM, "differences are added as they are"),
    "model_stock": ("linear", UNIFORM, "all models have the same weight, whatever their angles"),
    "karcher": ("linear", UNIFORM, "the mean is taken along straight lines"),
    NUSLERP: ("linear", UNIFORM, "the mean is taken along straight lines"),
    "multislerp": ("linear", UNIFORM, "the mean is taken along straight lines"),
    "nearswap": ("slerp", {"t": 0.5}, "the tensors are interpolated whole"),
    "arcee_fusion": ("slerp", {"t": 0.5}, "the tensors are interpolated whole, without a choice of entries"),
}
"""Methods of mergekit that posttrain lacks: the nearest one that it has, its parameters, and how it differs."""
PARAMETERS = frozenset(
    spread(
        None,
        """
weight density normalize int8_mask rescale lambda gamma epsilon select_topk filter_wise t scale embed_slerp eps max_iter
tol row_wise nuslerp_flatten nuslerp_row_wise normalize_weights tukey_fence consensus_method r base_model_weight
similarity_threshold
""",
    )
)
"""Parameters of any method of mergekit."""
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
    given = str(leaves.get("merge_method", ""))
    if given not in (*METHODS, *NEAREST):
        message = f"mergekit has no merge_method {given}" if given else "the configuration names no merge_method"
        raise job.fail("merge_method", message, suggest(given, (*METHODS, *NEAREST), "methods"))
    if given == NUSLERP and _map_nuslerp(job, stage):
        _finish(job)
        return
    method, fallback, how = NEAREST.get(given, (given, {}, ""))
    if leaves.has("modules"):
        raise job.fail("modules", "merges of parts of a model (`modules`) are not there", "merge whole models")
    if how:
        note = f"there is no {given}; the recipe has {method}: {how}"
        leaves.account(
            "merge_method", "not supported", f"{note}; or merge with mergekit and name the result as a model"
        )
        stage.put("merge_method", method, f"instead of {given}")
    else:
        stage.copy("merge_method", "merge_method", str)
    allowed = _list_parameters(method)
    if leaves.has("base_model"):
        stage.put("base_model", _refer(job, "base_model"), "base_model")
    if isinstance(models := leaves.get("models"), list):
        made = [_read_model(job, f"models.{i}", item, allowed) for i, item in enumerate(models)]
        stage.put("models", made, "models")
    if isinstance(slices := leaves.get("slices"), list):
        made = [_read_slice(job, f"slices.{i}", item, allowed) for i, item in enumerate(slices)]
        stage.put("slices", made, "slices")
    parameters = _keep_parameters(job, "parameters", leaves.get("parameters"), allowed)
    needed = {name: value for name, value in fallback.items() if name not in parameters and not _is_set(stage, name)}
    if parameters or needed:
        stage.put("parameters", {**needed, **parameters}, "parameters" if parameters else f"instead of {given}")
    for key in ("dtype", "out_dtype"):
        if leaves.has(key):
            stage.copy(key, key)
    _finish(job)


def _is_set(stage: StageDraft, name: str) -> bool:
    """Return whether any model or slice sets a parameter."""
    return f'"{name}"' in json.dumps([stage.get("models"), stage.get("slices")])


def _map_nuslerp(job: Job, stage: StageDraft) -> bool:
    """Write `nuslerp` of two models as the same arc; return False for a form that slerp does not have."""
    leaves, models = job.leaves, job.leaves.get("models")
    weights = [leaves.get(f"models.{i}.parameters.weight", leaves.get("parameters.weight")) for i in range(2)]
    plain = all(isinstance(weight, int | float) and not isinstance(weight, bool) for weight in weights)
    options = leaves.get("parameters.nuslerp_flatten", True) is True and not leaves.get("parameters.nuslerp_row_wise")
    if not (isinstance(models, list) and len(models) == 2 and plain and options) or leaves.has("base_model"):
        return False
    if leaves.has("modules") or not all(isinstance(item, dict) and "model" in item for item in models):
        return False
    stage.put("merge_method", "slerp", "nuslerp")
    leaves.mapped("merge_method", "merged.merge_method", "slerp, the same arc")
    total = sum(weights)
    stage.put("base_model", _refer(job, "models.0.model"), "models.0")
    stage.put("models", [{"model": _refer(job, "models.1.model")}], "models.1")
    t = 0.5 if abs(total) < 1e-6 else float(f"{weights[1] / total:.9g}")
    stage.put("parameters", {"t": t}, "the weights")
    for at in ("models.0.parameters.weight", "models.1.parameters.weight", "parameters.weight"):
        leaves.mapped(at, "merged.parameters.t", "the second weight's share")
    leaves.harmless("parameters.nuslerp_flatten", "is the default")
    leaves.harmless("parameters.nuslerp_row_wise", "is off")
    leaves.harmless("parameters.int8_mask", "does not change the result")
    for key in ("dtype", "out_dtype"):
        if leaves.has(key):
            stage.copy(key, key)
    return True


def _finish(job: Job) -> None:
    """Take over the tokenizer, and account for the chat template."""
    leaves, stage = job.leaves, job.draft.stages["merged"]
    _map_tokenizer(job)
    for leaf in leaves.leaves_of("chat_template"):
        leaves.account(leaf, "default differs", f"theirs {leaves.values[leaf]}; ours the first model's template")
    if "tokenizer_source" in leaves.tree and leaves.get("tokenizer_source") in ("base", "union"):
        stage.lines["tokenizer_source"] = Line(leaves.get("tokenizer_source"), "tokenizer_source")


def _list_parameters(method: str) -> frozenset[str]:
    """Return the parameters that a method of posttrain has, and those that change nothing."""
    options = read_signature(MergeMethodUse, method).options
    return frozenset(option.removesuffix("_") for option in options) | {"int8_mask"}


def _keep_parameters(job: Job, at: str, given: Any, allowed: frozenset[str]) -> JsonObject:
    """Return the parameters that the method has; the others are named."""
    kept: JsonObject = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if name in allowed:
            kept[name] = value
            job.leaves.mapped(f"{at}.{name}", f"merged.{at}.{name}")
        elif name in PARAMETERS:
            job.leaves.account(f"{at}.{name}", "not supported", "the method of the recipe has no such parameter")
        else:
            advice = suggest(str(name), sorted(allowed), "parameters")
            job.leaves.account(f"{at}.{name}", "unknown", f"{advice}; the recipe is written without it")
    return kept


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
    base, plus, adapter = str(name).partition("+")
    try:
        reference = refer(adapter.strip() if plus else name, job.places, revision)
    except ValueError as error:
        raise job.fail(key, str(error), "name a folder or a model of the hub") from None
    if plus:
        note = f"the adapter, merged into the base that it names, which must be {base.strip()}"
        job.leaves.account(key, "mapped", f"merged.{key}: {reference}: {note}")
    job.leaves.mapped(key, f"merged.{key}", reference)
    return reference


def _read_model(job: Job, at: str, item: Any, allowed: frozenset[str]) -> JsonObject:
    if not isinstance(item, dict) or "model" not in item:
        raise job.fail(at, "names no model", "write `- model: org/name`")
    made: JsonObject = {"model": _refer(job, f"{at}.model")}
    return made | _read_parameters(job, at, item, allowed)


def _read_parameters(job: Job, at: str, item: JsonObject, allowed: frozenset[str]) -> JsonObject:
    kept = _keep_parameters(job, f"{at}.parameters", item.get("parameters"), allowed)
    return {"parameters": kept} if kept else {}


def _read_slice(job: Job, at: str, item: Any, allowed: frozenset[str]) -> JsonObject:
    sources = item.get("sources") if isinstance(item, dict) else None
    if not isinstance(sources, list):
        raise job.fail(at, "names no sources", "write `sources: [{model: org/name, layer_range: [0, 8]}]`")
    made = []
    for index, source in enumerate(sources):
        where = f"{at}.sources.{index}"
        read = _read_model(job, where, source, allowed)
        job.leaves.mapped(f"{where}.layer_range", f"merged.{where}.layer_range")
        made.append({"model": read.pop("model"), "layer_range": source.get("layer_range"), **read})
    return {"sources": made, **_read_parameters(job, at, item, allowed)}


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
