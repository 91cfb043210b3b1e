"""The fields of a format, taken from the columns that a recipe names, or built by a template."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from learning.data.sources.records import BadRow
from schemas.row_formats import Emit
from schemas.row_templates import is_template, parse_template

Values = dict[str, Any]
USUAL_NAMES = {
    "prompt": ("question", "instruction", "query", "problem", "input", "user"),
    "completion": ("response", "output", "answer", "solution", "target", "assistant"),
    "chosen": ("accepted", "preferred", "winner"),
    "rejected": ("dispreferred", "loser"),
    "messages": ("conversation", "dialog", "dialogue", "chat"),
    "text": ("content", "document"),
    "answer": ("solution", "target", "ground_truth"),
}
"""Names under which files often have a field."""
USUAL_FIELDS: dict[Emit, tuple[tuple[str, ...], ...]] = {
    "chat": (("messages",), ("prompt", "completion"), ("text",)),
    "preference_pairs": (("prompt", "chosen", "rejected"), ("chosen", "rejected")),
    "prompts": (("prompt", "answer"), ("prompt",)),
    "step_labels": (),
}


def make_mapping(columns: Mapping[str, str]) -> Callable[[Values], Values]:
    """Return a function from the columns of a row to the fields of its format.

    Columns that are renamed lose their old name; all others stay. The function raises BadRow for a missing column.
    """
    if not columns:
        return lambda values: values
    templates = {field: parse_template(text) for field, text in columns.items() if is_template(text)}
    names = {field: name for field, name in columns.items() if field not in templates}
    renamed = set(names.values()) - set(columns)

    def apply(values: Values) -> Values:
        fields = {name: value for name, value in values.items() if name not in renamed}
        for field, name in names.items():
            if name not in values:
                raise BadRow(f"no column `{name}`, which is to be `{field}`; its columns: {list_columns(values)}")
            fields[field] = values[name]
        for field, parts in templates.items():
            fields[field] = "".join(text + (_read_text(values, path, field) if path else "") for text, path in parts)
        return fields

    return apply


def _read_text(values: Values, path: tuple[str, ...], field: str) -> str:
    value: Any = values
    for depth, key in enumerate(path):
        if not isinstance(value, dict) or key not in value:
            name = ".".join(path[: depth + 1])
            raise BadRow(
                f"no column `{name}`, which the template of `{field}` has; its columns: {list_columns(values)}"
            )
        value = value[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def suggest_mapping(values: Values, emit: Emit) -> str:
    """Return `columns` that map usual names of a file to fields of a format, or the form of such a mapping."""
    names = {name.lower(): name for name in reversed(values)}
    for fields in USUAL_FIELDS[emit]:
        listed = {
            field: next((names[word] for word in (field, *USUAL_NAMES[field]) if word in names), "") for field in fields
        }
        if all(listed.values()) and len(set(listed.values())) == len(listed):
            renamed = ", ".join(f"{field}: {name}" for field, name in listed.items() if field != name)
            return f"columns: {{{renamed}}}"
    return "columns: {prompt: COLUMN}"


def list_columns(values: Values) -> str:
    """Return the columns of a row, for messages."""
    names = list(values)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"
