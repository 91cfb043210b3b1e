"""A recipe expanded, or minimised to what differs from the defaults; either gives the same steps and keys."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from schemas.base import JsonObject
from schemas.errors import RecipeError
from schemas.expansion.expand import find_presets
from schemas.recipe.load import Recipe
from schemas.source.parser import read_source
from schemas.stages.base import BaseStage
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo, find_place
from schemas.use import Use

WIDTH = 120
LITERAL = re.compile(r"\$\{(?!env:)")
"""A `${` that is text; references to environment variables stay references."""
HEAD = ("schema_version", "name", "description", "tags", "seed", "schedule", "promote", "budget", "notify", "track")


def show_full(recipe: Recipe) -> str:
    """Return the recipe with every key of every step: after extends, profile, variables, presets and loops."""
    return _write(recipe, lambda info: _drop_null(info.dump()))


def show_minimal(recipe: Recipe) -> str:
    """Return the steps with the keys that differ from the defaults of their kinds."""
    return _write(recipe, _minimise)


def _make_head(recipe: Recipe) -> JsonObject:
    head = recipe.head.model_dump(mode="json", exclude_defaults=True, include=set(HEAD))
    return {
        "schema_version": 1,
        "name": recipe.name,
        **{key: head[key] for key in HEAD if key in head and key != "name"},
    }


def _minimise(info: StepInfo) -> JsonObject:
    """Return the keys of a stage whose values are not those of a stage that sets only what it must.

    What a preset sets is shown whole, since a value that is left out there is the preset's.
    """
    full = _drop_null(info.dump())
    preset = find_presets(type(info.stage)).get(getattr(info.stage, "algorithm", None) or "")
    kept: set[str] = set() if preset is None else set(read_source(preset).value)
    for slot in reversed(info.slots):
        if slot.path.partition(".")[0] not in kept:
            _drop_default_options(find_place(full, slot.path), slot)
    return {
        key: value
        for key, value in full.items()
        if key == "kind" or key in kept or not _is_default(info.stage, key, value)
    }


def _drop_default_options(place: JsonObject, slot: Slot) -> None:
    """Remove the options of a function that have their default values."""
    for model, names in ((type(slot.use), set(type(slot.use).model_fields)), (type(slot.options), set(slot.values))):
        for name, field in model.model_fields.items():
            key = field.alias or name
            if not {name, key} & names or key not in place or field.is_required():
                continue
            if place[key] == _dump_default(field.get_default(call_default_factory=True)):
                del place[key]


def _is_default(stage: BaseStage, key: str, value: Any) -> bool:
    field = type(stage).model_fields.get(key)
    if field is None or field.is_required() or key == "learning_rate":
        return False
    default = field.get_default(call_default_factory=True)
    is_same = default == getattr(stage, key) and not isinstance(default, list | Mapping)
    return is_same or _dump_default(default) == value


def _dump_default(default: Any) -> Any:
    """Return a default as plain values, a function without the options that have their own defaults."""
    if isinstance(default, list):
        return [_dump_default(item) for item in default]
    if isinstance(default, Use):
        return default.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return default.model_dump(mode="json", by_alias=True) if isinstance(default, BaseModel) else default


def _drop_null(value: JsonObject) -> JsonObject:
    return {key: item for key, item in value.items() if item is not None}


def _write(recipe: Recipe, dump: Callable[[StepInfo], JsonObject]) -> str:
    """Return a recipe of one stage per step. Raise RecipeError where steps come from a loop or a matrix."""
    for name, info in recipe.steps.items():
        if "@" in name or info.unless or any("@" in step for port in info.ports for step in port.steps):
            message, advice = "comes from a loop or a matrix", "`posttrain plan --json` has the settings of every step"
            raise RecipeError([info.problem("", message, advice)])
    names = {name: name.replace("-", "_") for name in recipe.steps}
    stages: JsonObject = {}
    for name, info in recipe.steps.items():
        stage = _rename(dump(info), info, names)
        stages[names[name]] = {"kind": stage["kind"], **stage}
    text = yaml.safe_dump({**_make_head(recipe), "stages": stages}, sort_keys=False, allow_unicode=True, width=WIDTH)
    return LITERAL.sub("$${", text)


def _rename(stage: JsonObject, info: StepInfo, names: Mapping[str, str]) -> JsonObject:
    """Return a stage that names data stages, which were written in place, by names that a recipe may have."""
    for port in info.ports:
        if port.steps and (new := names[port.steps[0]]) != port.steps[0]:
            place: Any = stage
            *above, last = port.path.split(".")
            for part in above:
                place = place[int(part)] if isinstance(place, list) else place[part]
            place[int(last) if isinstance(place, list) else last] = port.text.replace(port.steps[0], new)
    return stage
