"""The rule that a family of reasoning-gym exists, from the library's source text: its import takes seconds."""

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from schemas.errors import Problem
from schemas.source.tree import join_path
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest

REGISTERED = re.compile(r"register_dataset\(\s*(?:name=)?([\"']?)(\w+)\1")
CONSTANT = re.compile(r"^(\w+)\s*(?::\s*\w+\s*)?=\s*[\"'](\w+)[\"']", re.MULTILINE)


def check_families(info: StepInfo) -> Iterator[Problem]:
    """Yield the families that reasoning-gym does not have."""
    for slot in info.slots:
        if (slot.signature.module, slot.signature.name) != ("learning.problems.generators", "reasoning_gym"):
            continue
        family = slot.values.get("family")
        if not isinstance(family, str) or _has_family(family) or not (known := list_families()):
            continue
        if family not in known:
            advice = suggest(family, known, "families")
            yield info.problem(join_path(slot.path, "family"), f"reasoning-gym has no family `{family}`", advice)


@cache
def list_families() -> tuple[str, ...]:
    """Return the names that reasoning-gym's modules register, sorted; empty if the library is not installed."""
    return tuple(sorted({name for text in _read_modules() for name in _find_registered(text)}))


@cache
def _has_family(name: str) -> bool:
    return any(name in text and name in _find_registered(text) for text in _read_modules())


@cache
def _read_modules() -> tuple[str, ...]:
    """Return the source texts of reasoning-gym's modules; none if the library is not installed."""
    spec = importlib.util.find_spec("reasoning_gym")
    folders = spec.submodule_search_locations if spec is not None else None
    files = (path for folder in folders or () for path in Path(folder).rglob("*.py"))
    return tuple(file.read_text(encoding="utf-8", errors="replace") for file in files)


def _find_registered(text: str) -> set[str]:
    """Return the names that a module registers."""
    constants = dict(CONSTANT.findall(text))
    return {word if quote else constants.get(word, "") for quote, word in REGISTERED.findall(text)} - {""}
