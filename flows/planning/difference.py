"""Differences between two step identities, as text."""

from collections.abc import Iterator
from typing import Any, Protocol

from schemas.base import JsonObject

ABSENT = "nothing"


class Definitions(Protocol):
    """Digests of the definitions behind the digests of modules."""

    def changed(self, before: str, now: str) -> list[str]:
        """Return the names of the definitions in which two digests differ."""
        ...


def find_first_difference(old: JsonObject, new: JsonObject, definitions: Definitions | None = None) -> str:
    """Return the first thing in which two identities differ: settings, then seed, inputs and code."""
    return next(list_differences(old, new, definitions), "nothing differs")


def list_differences(old: JsonObject, new: JsonObject, definitions: Definitions | None = None) -> Iterator[str]:
    """Yield everything in which two identities differ, as `learning_rate: 0.001 → 0.002`."""
    for path, before, after in list_changes(old.get("settings", {}), new.get("settings", {})):
        yield f"{path}: {format_value(before)} → {format_value(after)}"
    for field in ("kind", "seed", "format"):
        if old.get(field) != new.get(field):
            yield f"{field}: {format_value(old.get(field))} → {format_value(new.get(field))}"
    before, now = old.get("inputs", {}), new.get("inputs", {})
    yield from (f"input {port}: changed" for port in now if port in before and before[port] != now[port])
    yield from (f"input {port}: is new" for port in now if port not in before)
    yield from (f"input {port}: was removed" for port in before if port not in now)
    yield from list_code_changes(old.get("code", {}), new.get("code", {}), definitions)


def list_code_changes(
    before: dict[str, str], now: dict[str, str], definitions: Definitions | None = None
) -> Iterator[str]:
    """Yield the modules that changed, are used now, or no more, as `code: learning/losses.py changed (clipped)`."""
    for module in now:
        if module not in before:
            yield f"code: {_module_path(module)} is used now"
        elif before[module] != now[module]:
            names = definitions.changed(before[module], now[module]) if definitions is not None else []
            yield f"code: {_module_path(module)} changed" + (f" ({', '.join(names)})" if names else "")
    yield from (f"code: {_module_path(module)} is no longer used" for module in before if module not in now)


def list_changes(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted path, before, after) of every difference of two values; ABSENT stands for a missing side."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*new, *(k for k in old if k not in new)):
            yield from list_changes(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from list_changes(one, other, f"{path}.{index}")
    elif old != new:
        yield path, old, new


def format_value(value: Any) -> str:
    """Return a value in at most 60 characters."""
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _module_path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"
