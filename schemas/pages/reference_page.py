"""docs/recipes.md, generated from the code: every key of every kind, and every function of every slot."""

import itertools
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from schemas.budget import Budget, Prices
from schemas.checks.merges import list_merge_methods
from schemas.endpoint import Endpoint, Price
from schemas.expansion.expand import find_presets
from schemas.field_docs import document
from schemas.modules import bounded_reading
from schemas.notify import Notify
from schemas.number_schedules import Number
from schemas.package import import_path
from schemas.recipe.load import Head
from schemas.references import Reference
from schemas.resources import Resources, TrainRole
from schemas.schedule import Schedule
from schemas.signatures import Option, Signature, list_names, read_signature
from schemas.stages.base import BaseStage
from schemas.stages.union import KINDS
from schemas.steps.promotion import Promote
from schemas.training import LoRA, Training, hide_default
from schemas.use import MergeMethodUse, Use

INTRODUCTION = """# Recipes

<!-- Written by `make docs` from schemas/ and from the signatures in learning/. Edit those. -->

A recipe is one YAML 1.2 document. `posttrain validate` checks it; editors complete it with
`recipes/recipe.schema.json`.

## References

A bare word refers to the first output of a stage of this recipe (`model: cold_start`); `stage.output` refers to
a named output. Artifacts from elsewhere are `hub:org/name@revision`, `path:./folder` and `mlflow:name@champion`.
References define the order; `after: [stage]` defines an order without data. After a gate that branches,
`repair | tuned` is the first of these stages that ran.

## Functions

Where a key takes a function, write its name, or a map of `use:` and the function's options:
`policy_loss: {use: clipped, epsilon: 0.1}`. Name code of your own as `package.module:function`; it is searched in the
folder of the recipe and in the current folder. A number that may change while training is a constant,
`{linear: {from: 0.2, to: 0.0, steps: 100}}`, `{cosine: {...}}` or `{piecewise: {0: 1.0, 50: 0.5}}`.

## Servers

`endpoints: {teacher: {base_url: ..., model: ...}}` declares servers that speak OpenAI's protocol; `endpoint: teacher`
names one where a function has an option of type Endpoint, which also takes the keys themselves. See `docs/remote.md`.

## Building on others

- `extends: base.yaml` (or a list) puts the recipe on top of others. Maps merge key by key; lists and single values are
  replaced. A map with another `use` or `kind`, or with `$replace: true`, replaces the one below it.
- `profiles: {tiny: {...}}` are overrides, put on top by `--profile tiny`; `--set stages.rl.max_steps=5` comes last.
- `defaults: {sft: {...}}` are the defaults of every stage of a kind; `algorithm: grpo` fills the slots of an rl stage.
- `vars: {size: 100}` and `${vars.size}`: a value that is only a variable keeps its type, inside a text the variable is
  written out. Whole numbers and digits alone make a number: `seed: "${vars.seed}0${repeat.iteration}"`. `$${` is a
  plain `${`.
  `${env:NAME}` stays a reference to an environment variable; its value is never stored.
- Top-level keys that start with `x-` are ignored: a place for notes and YAML anchors (`&a`, `*a`, `<<: *a`).

## Many of one stage

- `matrix: {lr: [0.1, 0.01]}` on a stage makes one step per combination, called `sft@lr=0.1`; `${matrix.lr}` is the
  value. In `models` of evaluate and merge, and `inputs` of python, the bare word means all of them; elsewhere name one.
- A loop is a stage with `repeat` in place of a kind:

      rounds:
        repeat:
          max: 3
          until: "eval.accuracy >= 0.9"
          first: {tune: cold_start}
          stages:
            sample: {kind: synthesize, model: previous.tune, ...}
            tune: {kind: sft, model: previous.tune, data: sample}
            eval: {kind: evaluate, model: tune, ...}

  Iteration i of `tune` is the step `rounds-i-tune`. Inside the loop, `previous.tune` is that stage in the previous
  iteration (in the first one, the reference under `first`), and `${repeat.iteration}` counts from 1. Outside,
  `rounds.tune` is the last iteration that ran. Once the condition in `until` is true, later iterations are skipped.

Every curation is compared with every evaluation of the recipe, also if the recipe does not say so;
`decontaminate: null` turns this off.
"""


@bounded_reading()
def make_reference_page() -> str:
    """Return the page as Markdown."""
    slots = [slot for slot in sorted(Use.__subclasses__(), key=lambda slot: slot.__name__) if slot.home]
    document(
        [Head, Schedule, Promote, Notify, Budget, Prices, Endpoint, Price, BaseStage, Resources, TrainRole, Training]
    )
    document([*KINDS.values(), *slots])
    parts = [INTRODUCTION, "## The recipe\n", _make_table(Head, set()), "**Schedule**\n", _make_table(Schedule, set())]
    parts += ["**Promote**\n", _make_table(Promote, set())]
    parts += ["**Notify**\n", _make_table(Notify, set())]
    parts += ["**Budget**\n", _make_table(Budget, set()), "**Prices**\n", _make_table(Prices, set())]
    parts += ["**Endpoint**\n", _make_table(Endpoint, set()), "**Price**\n", _make_table(Price, set())]
    parts += [
        "## Keys of every stage\n",
        _make_table(BaseStage, set()),
        "**Resources**\n",
        _make_table(Resources, set()),
    ]
    parts += ["**TrainRole**; Role is the same without `strategy`\n", _make_table(TrainRole, set())]
    parts += ["## Keys of every training stage\n", _make_table(Training, set())]
    for kind, model in KINDS.items():
        parts += [f"## kind: {kind}\n", _describe_kind(model)]
    parts.append("## What the slots can name\n")
    parts += map(_describe_slot, slots)
    return "\n".join(parts).rstrip() + "\n"


def _describe_kind(model: type[BaseStage]) -> str:
    shared = [m for m in (BaseStage, Training) if issubclass(model, m)]
    own = model.model_fields
    skip = {"kind", *model.filled_in} | {
        n for m in shared for n, f in m.model_fields.items() if own[n].description == f.description
    }
    text = [_read_doc(model), ""]
    if Training in shared:
        text += ["Takes the keys of every training stage.", ""]
    text.append(_make_table(model, skip))
    for inner in dict.fromkeys(_list_models(model)):
        if inner is not LoRA:
            text += [f"**{inner.__name__}**: {_read_doc(inner)}", "", _make_table(inner, set())]
    if "algorithm" in model.model_fields:
        text += [f"Algorithms, in `{model.presets}/`:", "", *map(_describe_preset, find_presets(model).items()), ""]
    return "\n".join(text)


def _describe_preset(named: tuple[str, Path]) -> str:
    """Return a line of the list: the name, and the first sentence of the file's header."""
    name, file = named
    header = " ".join(line.lstrip("# ").strip() for line in _read_header(file))
    return f"- `{name}`: {re.split(r'(?<=[)][.]) |(?<=[.]) (?=[A-Z])', header)[0]}"


def _read_header(file: Path) -> Iterator[str]:
    return itertools.takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())


def _list_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield models below the fields of a model that are neither functions nor common to all stages."""
    for name, spec in model.model_fields.items():
        if name in BaseStage.model_fields or (issubclass(model, BaseStage) and name in model.filled_in):
            continue
        for part in _walk_annotation(spec.annotation):
            is_model = isinstance(part, type) and issubclass(part, BaseModel) and not issubclass(part, Use)
            if is_model and part.__module__ != import_path("schemas.number_schedules"):
                yield part
                yield from _list_models(part)


def _walk_annotation(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _walk_annotation(inner)


def _make_table(model: type[BaseModel], skip: set[str]) -> str:
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for name, spec in model.model_fields.items():
        if name not in skip:
            kind, default = _describe_type(spec.annotation), _describe_default(spec)
            rows.append(f"| `{spec.alias or name}` | {kind} | {default} | {_flatten(spec.description)} |")
    return "\n".join(rows) + "\n"


def _describe_slot(slot: type[Use]) -> str:
    text = [f"### {_make_title(slot)}\n", _read_doc(slot), ""]
    names = list_merge_methods() if slot is MergeMethodUse else list_names(slot)
    own = [n for n in slot.model_fields if n != "use"]
    if own:
        text += [f"In addition to the options: {', '.join(f'`{n}`' for n in own)}.", ""]
    for name in names:
        signature = read_signature(slot, name)
        text.append(f"- `{name}` {_flatten(signature.summary)}{_describe_options(signature)}")
    return "\n".join(text) + "\n"


def _describe_options(signature: Signature) -> str:
    return "".join(
        f"\n  - `{name.removesuffix('_')}`: {_describe_type(option.type)}{_describe_option_default(option)}"
        for name, option in signature.options.items()
    )


def _describe_option_default(option: Option) -> str:
    if option.required:
        return ", required"
    return f", default {_describe_literal(option.default)}" if option.is_literal else ""


def _make_title(slot: type[Use]) -> str:
    words = re.findall(r"[A-Z][a-z]+", slot.__name__.removesuffix("Use"))
    return " ".join(words).capitalize()


def _read_doc(model: type) -> str:
    return re.sub(r"\s*\n\s*", " ", (model.__doc__ or "").strip())


def _flatten(text: str | None) -> str:
    return " ".join((text or "").replace("|", "\\|").split())


def _describe_default(spec: FieldInfo) -> str:
    if spec.is_required() or spec.default is PydanticUndefined:
        return "required"
    if spec.json_schema_extra is hide_default:
        return "by what is trained"
    return _describe_literal(spec.default)


def _describe_literal(value: Any) -> str:
    if isinstance(value, Use):
        return f"`{value.use}`"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, list | tuple):
        return ", ".join(_describe_literal(v) for v in value) or "`[]`"
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else f"{value!r}" if value == "" else f"{value}"
    return f"`{_flatten(text)}`"


def _describe_type(annotation: Any) -> str:
    if annotation == Number:
        return "number or schedule"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe_type(args[0]) + _describe_bounds(args[1:])
    if origin is Literal:
        return " \\| ".join(f"`{a}`" for a in args)
    if origin in (Union, types.UnionType):
        return _describe_union(args)
    if origin in (list, tuple):
        return f"list of {_describe_type(args[0])}"
    if origin is dict:
        return f"map to {_describe_type(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Reference):
        return f"reference ({', '.join(annotation.accepts)})" if len(annotation.accepts) < 6 else "reference"
    if isinstance(annotation, type) and issubclass(annotation, Use):
        if not annotation.home:
            return "`package.module:function`"
        return f"[{_make_title(annotation).lower()}](#{_make_title(annotation).lower().replace(' ', '-')})"
    names = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true \\| false",
        Any: "anything",
        type(None): "null",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _describe_union(args: tuple[Any, ...]) -> str:
    numbers = set(get_args(Number))
    rest = [a for a in args if a not in numbers]
    schedule = ["number or schedule"] if numbers <= set(args) else [_describe_type(a) for a in args if a in numbers]
    return " \\| ".join(schedule + [_describe_type(a) for a in rest])


def _describe_bounds(metadata: tuple[Any, ...]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    parts = [m for spec in metadata if isinstance(spec, FieldInfo) for m in spec.metadata]
    bounds = [f"{sign} {getattr(m, name):g}" for m in parts for name, sign in signs.items() if hasattr(m, name)]
    return f" {', '.join(bounds)}" if bounds else ""
