"""The JSON Schema (2020-12) of recipes for editors: kinds, slots and the options of their functions.

It describes what is written, before variables and presets: `${...}` may stand for any value, an rl stage with an
`algorithm` needs no slots, and a recipe that `extends` another may hold parts of stages.
"""

import copy
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from schemas.base import JsonObject
from schemas.checks.merges import list_merge_methods
from schemas.expansion.expand import find_presets, list_preset_slots
from schemas.expansion.inline_data import list_row_ports
from schemas.field_docs import document
from schemas.modules import bounded_reading
from schemas.recipe.load import Head
from schemas.references import SCHEMES
from schemas.signatures import Signature, make_options_model, read_signatures
from schemas.stages.data import Source
from schemas.stages.union import KINDS, Stage
from schemas.use import Use

_TEXT = {"type": "string", "pattern": r"\$\{[^{}]+\}"}
_IMPORT_PATH = {
    "type": "string",
    "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
    "description": "package.module:function",
}


@bounded_reading()
def make_editor_schema() -> JsonObject:
    """Return the schema as plain values; equal code gives equal text."""
    slots = _list_slots(Use)
    signatures_by_slot = {slot: list(read_signatures(slot)) for slot in slots}
    models = [
        *KINDS.values(),
        Head,
        *slots,
        *(make_options_model(s) for pairs in signatures_by_slot.values() for _, s in pairs),
    ]
    document(models)
    refs, schema = models_json_schema([(m, "validation") for m in dict.fromkeys(models)], by_alias=True)
    defs: JsonObject = {name: _allow_variables(body) for name, body in schema["$defs"].items()}
    names = {model: ref["$ref"].rpartition("/")[2] for (model, _), ref in refs.items()}
    for slot, pairs in signatures_by_slot.items():
        own = {k: v for k, v in defs[names[slot]].get("properties", {}).items() if k != "use"}
        required = [k for k in defs[names[slot]].get("required", []) if k != "use"]
        options = [(name, s, defs[names[make_options_model(s)]]) for name, s in pairs]
        defs[names[slot]] = _make_slot(slot, options, own, required)
    head = defs.pop(names[Head])
    for kind, model in KINDS.items():
        part = _make_stage(kind, defs.pop(names[model]))
        demands = {k: part.pop(k) for k in ("required", "anyOf") if k in part}
        defs[f"part_{kind}"] = part
        defs[f"stage_{kind}"] = {"allOf": [{"$ref": f"#/$defs/part_{kind}"}], **demands}
    unused = {names[make_options_model(s)] for pairs in signatures_by_slot.values() for _, s in pairs}
    defs = {k: v for k, v in defs.items() if k not in unused} | _make_shared()
    return {**_make_top(head), "$defs": dict(sorted(defs.items()))}


def _list_slots(kind: type[Use]) -> list[type[Use]]:
    """Return every slot that stages use, sorted by name."""
    used = TypeAdapter(Stage).json_schema()["$defs"]
    below = [s for direct in kind.__subclasses__() for s in (direct, *direct.__subclasses__())]
    return sorted((s for s in below if s.__name__ in used), key=lambda s: s.__name__)


def _make_slot(
    slot: type[Use], options: list[tuple[str, Signature, JsonObject]], own: JsonObject, required: list[str]
) -> JsonObject:
    """Return a slot's schema: a bare word if no option is required, a map of options, or an import path."""
    bare = [n for n, _, body in options if not body.get("required") and not required]
    forms: list[JsonObject] = [{"enum": bare}] if bare else []
    if not required:
        forms.append(_IMPORT_PATH)
    if slot.plain:
        forms.append({"type": "string", "pattern": slot.plain})
    for name, signature, body in options:
        keys = {"use": {"const": name, "description": signature.summary}, **body.get("properties", {}), **own}
        needs = ["use", *body.get("required", []), *required]
        forms.append(
            {
                "type": "object",
                "description": signature.summary,
                "properties": keys,
                "required": needs,
                "additionalProperties": False,
            }
        )
    forms.append({"type": "object", "properties": {"use": _IMPORT_PATH, **own}, "required": ["use", *required]})
    return {"description": (slot.__doc__ or "").strip(), "anyOf": [*forms, _TEXT]}


def _make_stage(kind: str, body: JsonObject) -> JsonObject:
    """Return a kind as written: with `matrix`, single gates and losses, words for lists of models, presets."""
    properties = {**body["properties"], "kind": {"const": kind}, "matrix": {"$ref": "#/$defs/matrix"}}
    required = [k for k in body.get("required", []) if k != "kind"]
    schema = {**body, "properties": properties, "required": ["kind", *required]}
    for port in list_row_ports(KINDS[kind]):
        properties[port.name] = {"anyOf": [properties[port.name], {"$ref": "#/$defs/rows"}]}
    for key in sorted(KINDS[kind].single_keys):
        one = properties[key]["anyOf"][0]["items"]
        properties[key] = {**properties[key], "anyOf": [*properties[key]["anyOf"], one]}
    if "algorithm" in properties:
        slots = list_preset_slots(KINDS[kind])
        properties["algorithm"] = {
            **properties["algorithm"],
            "anyOf": [{"enum": list(find_presets(KINDS[kind]))}, _TEXT],
        }
        schema["required"] = ["kind", *(key for key in required if key not in slots)]
        schema["anyOf"] = [{"required": ["algorithm"]}, {"required": slots}]
        # On top of a preset a slot of one function may hold only the options that differ.
        part = {"type": "object", "not": {"required": ["use"]}}
        single = [slot for slot in slots if _is_use(KINDS[kind].model_fields[slot].annotation)]
        properties |= {slot: {**properties[slot], "anyOf": [*properties[slot]["anyOf"], part]} for slot in single}
    if "merge_method" in properties:
        properties["merge_method"] = {**properties["merge_method"], "anyOf": [{"enum": list_merge_methods()}, _TEXT]}
    return schema


def _is_use(annotation: object) -> bool:
    """Return whether a field takes one function."""
    return isinstance(annotation, type) and issubclass(annotation, Use)


def _make_shared() -> JsonObject:
    """Return definitions that no model has: stages of any kind, parts of stages, loops and matrix."""
    kind = {"enum": list(KINDS), "description": "What the stage does."}
    loop_keys = {
        "max": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, _TEXT]},
        "until": {"type": "string", "description": "Ends the loop early, as `eval.accuracy >= 0.9`."},
        "first": {"type": "object", "description": "What `previous.<stage>` means in the first iteration."},
        "stages": {"$ref": "#/$defs/stages"},
    }
    repeat = {"type": "object", "properties": loop_keys, "required": ["max", "stages"], "additionalProperties": False}
    values = {"anyOf": [{"type": "array", "minItems": 1}, _TEXT]}
    described = {"repeat": repeat, "description": {"type": "string"}}
    loop = {"type": "object", "properties": described, "required": ["repeat"], "additionalProperties": False}
    source = {"$ref": f"#/$defs/{Source.__name__}"}
    inline = {"type": "object", "properties": {"sources": {}}, "required": ["sources"]}
    return {
        "rows": {
            "anyOf": [source, {"type": "array", "items": source, "minItems": 1}, inline],
            "description": "Sources of rows in place of the name of a step: a step of kind `data` converts them.",
        },
        "stage": {
            "type": "object",
            "properties": {"kind": kind},
            "required": ["kind"],
            "allOf": _make_kind_cases("stage"),
        },
        "part": {"type": "object", "properties": {"kind": kind}, "allOf": _make_kind_cases("part")},
        "loop": loop,
        "stages": {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"},
            "additionalProperties": _allow_source(
                {
                    "if": {"required": ["repeat"]},
                    "then": {"$ref": "#/$defs/loop"},
                    "else": {"$ref": "#/$defs/stage"},
                }
            ),
            "minProperties": 1,
        },
        "matrix": {
            "anyOf": [{"type": "object", "additionalProperties": values}, _TEXT],
            "description": "Name to values: one step per combination; `${matrix.name}` is the value.",
        },
    }


def _allow_source(stage: JsonObject) -> JsonObject:
    """Return the definition of a stage, or of a model from outside in its place."""
    source = {"pattern": f"^({'|'.join(sorted(SCHEMES))}):|[$][{{]"}
    return {"if": {"type": "string"}, "then": source, "else": stage}


def _make_kind_cases(word: str) -> list[JsonObject]:
    """Return the definition of a stage's kind: `stage`, whole, or `part`, to which defaults add what is missing."""
    return [
        {"if": {"properties": {"kind": {"const": k}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/{word}_{k}"}}
        for k in KINDS
    ]


def _make_top(head: JsonObject) -> JsonObject:
    """Return the recipe itself. Stages that lean on a parent or on defaults need not be whole."""
    file = {"type": "string", "minLength": 1}
    properties = copy.deepcopy(head["properties"])
    properties["extends"] = {
        "anyOf": [file, {"type": "array", "items": file}],
        "description": "Recipes below this one.",
    }
    part = _allow_source({"type": "object", "properties": {"kind": {"enum": list(KINDS)}}})
    defaults = {
        k: {"type": "object", "properties": {p: {} for p in _list_keys(k)}, "additionalProperties": False}
        for k in KINDS
    }
    properties["defaults"] |= {"properties": defaults, "additionalProperties": False}
    properties["stages"] = {
        "type": "object",
        "minProperties": 1,
        "description": properties["stages"].get("description", ""),
    }
    added_to = _allow_source(
        {"if": {"required": ["repeat"]}, "then": {"type": "object"}, "else": {"$ref": "#/$defs/part"}}
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "posttrain recipe",
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
        "anyOf": [{"required": ["stages"]}, {"required": ["extends"]}],
        "if": {"required": ["extends"]},
        "then": {"properties": {"stages": {"additionalProperties": part}}},
        "else": {
            "if": {"required": ["defaults"]},
            "then": {"properties": {"stages": {"additionalProperties": added_to}}},
            "else": {"properties": {"stages": {"$ref": "#/$defs/stages"}}},
        },
    }


def _list_keys(kind: str) -> list[str]:
    return [*KINDS[kind].model_fields, "matrix"]


def _allow_variables(schema: Any) -> Any:
    """Return the schema with `${...}` allowed wherever a value is typed as something else than text."""
    if not isinstance(schema, dict):
        return schema
    result = {k: _open_value(k, v) for k, v in schema.items()}
    result.pop("title", None)
    return result


def _open_value(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: _allow_text(_allow_variables(child)) for name, child in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return _allow_text(_allow_variables(value))
    if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return [_allow_variables(child) for child in value]
    return value


def _allow_text(schema: JsonObject) -> JsonObject:
    """Return a value that may also be written as `${...}`."""
    if schema.get("type") == "string" and "enum" not in schema and "pattern" not in schema:
        return schema
    about = {k: v for k, v in schema.items() if k in ("description", "default")}
    inner = {k: v for k, v in schema.items() if k not in about}
    forms = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    return {**about, "anyOf": [*forms, _TEXT]} if inner else schema
