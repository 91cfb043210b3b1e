"""docs/recipes.md, written from the code: every key of every kind, and every function that a slot can name."""

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
from schemas.endpoint import Endpoint, Price
from schemas.expand import preset_names
from schemas.merges import methods
from schemas.promotion import Promote
from schemas.recipe import Head
from schemas.references import Reference
from schemas.schedule import Schedule
from schemas.schedules import Number
from schemas.signatures import Option, Signature, signature, signatures
from schemas.stages.base import BaseStage, Resources, TrainRole
from schemas.stages.union import KINDS
from schemas.training import LoRA, Training
from schemas.use import MergeMethodUse, Use

INTRODUCTION = """# Recipes

<!-- Written by `make docs` from schemas/ and from the signatures in learning/. Edit those. -->

A recipe is one YAML 1.2 document. `posttrain validate` checks it; editors complete it with
`recipes/recipe.schema.json`.

## References

A bare word is a stage of this recipe (`model: cold_start`) and means its first output; `stage.output` is one of its
named outputs. From outside come `hub:org/name@revision`, `path:./folder` and `mlflow:name@champion`.
References make the order; `after: [stage]` is for order without data. `repair | tuned` is the first of several stages
that ran, where a gate branches.

## Functions

Where a key takes a function, write its name, or a map of `use:` and the function's options:
`policy_loss: {use: clipped, epsilon: 0.1}`. Code of your own is `package.module:function`, found beside the recipe or
in the current folder. A number that may change while training is a constant, `{linear: {from: 0.2, to: 0.0, steps:
100}}`, `{cosine: {...}}` or `{piecewise: {0: 1.0, 50: 0.5}}`.

## Servers

`endpoints: {teacher: {base_url: ..., model: ...}}` declares servers that speak OpenAI's protocol; `endpoint: teacher`
names one where a function has an option of type Endpoint, which also takes the keys themselves. See `docs/remote.md`.

## Building on others

- `extends: base.yaml` (or a list) puts the recipe on top of others. Maps merge key by key; lists and single values are
  replaced. A map with another `use` or `kind` replaces the one below it, as does one that says `$replace: true`.
- `profiles: {tiny: {...}}` are overrides, put on top by `--profile tiny`; `--set stages.rl.max_steps=5` comes last.
- `defaults: {sft: {...}}` lie below every stage of a kind; `algorithm: grpo` puts the preset below an rl stage.
- `vars: {size: 100}` and `${vars.size}`: alone it keeps its type, inside a text it is written out. `$${` is a plain
  `${`.
  `${env:NAME}` stays a reference to an environment variable; its value is never stored.
- Keys that start with `x-` at the top are ignored: a place for notes and YAML anchors (`&a`, `*a`, `<<: *a`).

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

  Iteration i of `tune` is the step `rounds-i-tune`. Inside, `previous.tune` is the iteration before, in the first what
  `first` says; `${repeat.iteration}` counts from 1. Outside, `rounds.tune` is the last iteration that ran. Once `until`
  holds, later iterations are skipped.

Every curation is compared with every evaluation of the recipe, said or not; `decontaminate: null` ends that.
"""


def reference_page() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, "## The recipe\n", _table(Head, set()), "**Schedule**\n", _table(Schedule, set())]
    parts += ["**Promote**\n", _table(Promote, set())]
    parts += ["**Budget**\n", _table(Budget, set()), "**Prices**\n", _table(Prices, set())]
    parts += ["**Endpoint**\n", _table(Endpoint, set()), "**Price**\n", _table(Price, set())]
    parts += ["## Keys of every stage\n", _table(BaseStage, set()), "**Resources**\n", _table(Resources, set())]
    parts += ["**TrainRole**; Role is the same without `strategy`\n", _table(TrainRole, set())]
    parts += ["## Keys of every training stage\n", _table(Training, set())]
    for kind, model in KINDS.items():
        parts += [f"## kind: {kind}\n", _kind(model)]
    parts.append("## What the slots can name\n")
    parts += [_slot(slot) for slot in sorted(Use.__subclasses__(), key=lambda s: s.__name__) if slot.home]
    return "\n".join(parts).rstrip() + "\n"


def _kind(model: type[BaseStage]) -> str:
    shared = [m for m in (BaseStage, Training) if issubclass(model, m)]
    own = model.model_fields
    skip = {"kind"} | {n for m in shared for n, f in m.model_fields.items() if own[n].description == f.description}
    text = [_doc(model), ""]
    if Training in shared:
        text += ["Takes the keys of every training stage.", ""]
    text.append(_table(model, skip))
    for inner in dict.fromkeys(_models(model)):
        if inner is not LoRA:
            text += [f"**{inner.__name__}**: {_doc(inner)}", "", _table(inner, set())]
    if "algorithm" in model.model_fields:
        text += ["Algorithms, in `recipes/algorithms/`:", "", *map(_preset, preset_names().items()), ""]
    return "\n".join(text)


def _preset(named: tuple[str, Path]) -> str:
    """A line of the list: the name, and the first sentence of the file's header."""
    name, file = named
    header = " ".join(line.lstrip("# ").strip() for line in _header(file))
    return f"- `{name}`: {re.split(r'(?<=[)][.]) |(?<=[.]) (?=[A-Z])', header)[0]}"


def _header(file: Path) -> Iterator[str]:
    return itertools.takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Models below the fields of a model that are neither functions nor common to all stages."""
    for name, spec in model.model_fields.items():
        if name in BaseStage.model_fields:
            continue
        for part in _parts(spec.annotation):
            is_model = isinstance(part, type) and issubclass(part, BaseModel) and not issubclass(part, Use)
            if is_model and part.__module__ != "schemas.schedules":
                yield part
                yield from _models(part)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def _table(model: type[BaseModel], skip: set[str]) -> str:
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for name, spec in model.model_fields.items():
        if name not in skip:
            rows.append(
                f"| `{spec.alias or name}` | {_type(spec.annotation)} | {_default(spec)} | {_flat(spec.description)} |"
            )
    return "\n".join(rows) + "\n"


def _slot(slot: type[Use]) -> str:
    text = [f"### {_title(slot)}\n", _doc(slot), ""]
    found = [(n, signature(slot, n)) for n in methods()] if slot is MergeMethodUse else list(signatures(slot))
    own = [n for n in slot.model_fields if n != "use"]
    if own:
        text += [f"Beside the options: {', '.join(f'`{n}`' for n in own)}.", ""]
    for name, one in found:
        text.append(f"- `{name}` {_flat(one.summary)}{_options(one)}")
    return "\n".join(text) + "\n"


def _options(found: Signature) -> str:
    lines = [f"\n  - `{n.removesuffix('_')}`: {_type(o.type)}{_option_default(o)}" for n, o in found.options.items()]
    return "".join(lines)


def _option_default(option: Option) -> str:
    if option.required:
        return ", required"
    return f", default {_literal(option.default)}" if option.is_literal else ""


def _title(slot: type[Use]) -> str:
    words = re.findall(r"[A-Z][a-z]+", slot.__name__.removesuffix("Use"))
    return " ".join(words).capitalize()


def _doc(model: type) -> str:
    return re.sub(r"\s*\n\s*", " ", (model.__doc__ or "").strip())


def _flat(text: str | None) -> str:
    return " ".join((text or "").replace("|", "\\|").split())


def _default(spec: FieldInfo) -> str:
    if spec.is_required() or spec.default is PydanticUndefined:
        return "required"
    return _literal(spec.default)


def _literal(value: Any) -> str:
    if isinstance(value, Use):
        return f"`{value.use}`"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, list | tuple):
        return ", ".join(_literal(v) for v in value) or "`[]`"
    words = {None: "null", True: "true", False: "false"}
    said = words[value] if value is None or isinstance(value, bool) else f"{value!r}" if value == "" else f"{value}"
    return f"`{_flat(said)}`"


def _type(annotation: Any) -> str:
    if annotation == Number:
        return "number or schedule"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0]) + _bounds(args[1:])
    if origin is Literal:
        return " \\| ".join(f"`{a}`" for a in args)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin in (list, tuple):
        return f"list of {_type(args[0])}"
    if origin is dict:
        return f"map to {_type(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Reference):
        return f"reference ({', '.join(annotation.accepts)})" if len(annotation.accepts) < 6 else "reference"
    if isinstance(annotation, type) and issubclass(annotation, Use):
        return f"[{_title(annotation).lower()}](#{_title(annotation).lower().replace(' ', '-')})"
    names = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true \\| false",
        Any: "anything",
        type(None): "null",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _union(args: tuple[Any, ...]) -> str:
    numbers = set(get_args(Number))
    rest = [a for a in args if a not in numbers]
    schedule = ["number or schedule"] if numbers <= set(args) else [_type(a) for a in args if a in numbers]
    return " \\| ".join(schedule + [_type(a) for a in rest])


def _bounds(metadata: tuple[Any, ...]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    parts = [m for spec in metadata if isinstance(spec, FieldInfo) for m in spec.metadata]
    said = [f"{sign} {getattr(m, name):g}" for m in parts for name, sign in signs.items() if hasattr(m, name)]
    return f" {', '.join(said)}" if said else ""
