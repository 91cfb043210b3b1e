"""The functions and references in a stage, found by walking its values and checked against signatures."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from schemas.base import JsonObject
from schemas.errors import Problem
from schemas.references import Reference
from schemas.signatures import Signature, SignatureError, make_options_model, read_signature
from schemas.source.limits import MAX_PROBLEMS
from schemas.source.tree import Node, join_path, make_problem
from schemas.source.validation import convert_errors, find_coercions, follow_path
from schemas.use import Use


@dataclass(frozen=True)
class Slot:
    """A function named in a stage: where, which one, and its options with defaults."""

    path: str
    use: Use
    signature: Signature
    options: BaseModel

    @property
    def values(self) -> JsonObject:
        """Options as plain values; a default that only the function knows is left to it."""
        written = set(self.use.options)
        left = {n for n, o in self.signature.options.items() if not o.is_literal and n not in written}
        return self.options.model_dump(mode="json", by_alias=True, exclude=left)


def is_task(slot: Slot) -> bool:
    """Return whether a slot generates the problems of an evaluation."""
    return slot.path.startswith("tasks.") and slot.path.count(".") == 1


def identify_slot(slot: Slot) -> str:
    """Return what the result of a slot depends on: its function and all options."""
    return json.dumps([slot.signature.module, slot.signature.name, slot.values])


def bind_slots(value: Any, node: Node, path: str, folders: tuple[Path, ...]) -> tuple[list[Slot], list[Problem]]:
    """Return every function named in a validated value (paths relative to it), and what is wrong with them."""
    slots: list[Slot] = []
    problems: list[Problem] = []
    for where, use in _walk(value, ""):
        if isinstance(use, Use):
            at = follow_path(node, where)
            bound = _bind_slot(where, use, at, join_path(path, where), folders)
            if isinstance(bound, Slot):
                slots.append(bound)
                inner, more = bind_slots(bound.options, at, join_path(path, where), folders)
                slots += [Slot(join_path(where, s.path), s.use, s.signature, s.options) for s in inner]
                problems += more
            else:
                problems += bound
        if len(problems) > MAX_PROBLEMS:
            break
    return slots, problems


def find_references(stage: BaseModel, slots: list[Slot]) -> Iterator[tuple[str, Reference]]:
    """Yield every reference in a stage, also those among the options of its functions: dotted path and value."""
    for where, value in _walk(stage, ""):
        if isinstance(value, Reference):
            yield where, value
    for slot in slots:
        for where, value in _walk(slot.options, slot.path):
            if isinstance(value, Reference):
                yield where, value


def _bind_slot(where: str, use: Use, at: Node, path: str, folders: tuple[Path, ...]) -> Slot | list[Problem]:
    word = at.get("use") or at
    try:
        signature_here = read_signature(type(use), use.use, folders)
    except SignatureError as error:
        return [make_problem(word.mark, join_path(path, "use") if at.is_map else path, str(error), error.advice)]
    model = make_options_model(signature_here)
    try:
        options = model.model_validate(use.options)
    except ValidationError as error:
        return convert_errors(error, at, path, model, [f for f in type(use).model_fields if f != "use"])
    found_wrong = find_coercions(at, options.model_dump(by_alias=True), path) if at.is_map else iter(())
    wrong = list(islice(found_wrong, MAX_PROBLEMS))
    return wrong or Slot(where, use, signature_here, options)


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Use | Reference):
        yield path, value
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from _walk(getattr(value, name), join_path(path, field.alias or name))
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _walk(child, join_path(path, name))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _walk(child, join_path(path, index))
