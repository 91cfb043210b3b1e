"""The settings of a run's steps that matter: those that a recipe changes, and what decides how much is learned."""

import json
from typing import Any

from pydantic import BaseModel

from schemas.base import JsonObject
from schemas.plan import Plan, Step
from schemas.stages.union import KINDS

ALWAYS = (
    "learning_rate",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "generation_batch_size",
    "num_generations",
    "max_length",
    "max_completion_length",
    "temperature",
)
"""Settings that are shown also where they have their defaults."""
HIDDEN = frozenset({"kind", "emit", "sources", "trained_on", "config"})
"""Settings that another part of the report shows, or that are long."""
LONGEST = 120
"""Most characters of a value."""


def list_settings(plan: Plan) -> dict[str, list[tuple[str, str]]]:
    """Return (key, value) pairs by step, those that decide how much is learned first; no steps without any."""
    listed = {step.name: _list_step_settings(step) for step in plan.steps}
    return {name: pairs for name, pairs in listed.items() if pairs}


def _list_step_settings(step: Step) -> list[tuple[str, str]]:
    stage = KINDS.get(step.kind)
    fields = stage.model_fields if stage is not None else {}
    shown = [key for key in ALWAYS if step.settings.get(key) is not None]
    for key, value in step.settings.items():
        field = fields.get(key)
        default = ... if field is None or field.is_required() else field.get_default(call_default_factory=True)
        if key not in shown and key not in HIDDEN and value is not None and value != _dump(default):
            shown.append(key)
    return [(key, _format(step.settings[key])) for key in shown]


def _dump(value: Any) -> Any:
    """Return a default as a plan has it."""
    if isinstance(value, list):
        return [_dump(item) for item in value]
    return value.model_dump(mode="json", by_alias=True) if isinstance(value, BaseModel) else value


def _format(value: Any) -> str:
    """Return a value in one line; functions by their names and the options that are set."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict) and set(value) >= {"use"}:
        return _format_use(value)
    if isinstance(value, list):
        return _shorten(f"[{', '.join(_format(item) for item in value)}]")
    return _shorten(value if isinstance(value, str) else json.dumps(value))


def _format_use(value: JsonObject) -> str:
    options = {key: option for key, option in value.items() if key != "use" and option is not None}
    inner = ", ".join(f"{key} {_format(option)}" for key, option in options.items())
    return _shorten(f"{value['use']} ({inner})" if inner else str(value["use"]))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
