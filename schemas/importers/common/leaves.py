"""A configuration as leaves with dotted keys. Each leaf is accounted for at most once; `left` lists the rest.

A leaf is a single value, an empty map or list, or a list of single values.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from schemas.base import JsonObject
from schemas.importers.common.report import Entry, Status

OFF = (None, False, "", "none", "None", "no", "off", "false", "False", 0, 0.0, [], {})
"""Values that switch a feature off."""


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, list) and any(isinstance(item, dict | list) for item in tree):
        for index, item in enumerate(tree):
            yield from flatten(item, f"{prefix}.{index}")
    else:
        yield prefix, tree


class Leaves:
    """The leaves of a configuration, and the entry of each one that is accounted for."""

    def __init__(self, tree: JsonObject, file: str):
        self.tree, self.file = tree, file
        self.values: JsonObject = {}
        for leaf, value in flatten(tree) if tree else ():
            self.values[self._free(leaf)] = value
        self.entries: dict[str, Entry] = {}
        self.defaults: list[Entry] = []

    def _free(self, leaf: str) -> str:
        """Return a leaf's key, numbered if a key with dots in it has the same one."""
        names = itertools.chain([leaf], (f"{leaf}#{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in self.values)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key, which may have keys below it; `default` if it is absent or null."""
        value: Any = self.tree
        for part in key.split(".") if key not in self.tree else [key]:
            if isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                return default
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Return whether a key is there and not null."""
        return self.get(key) is not None

    def first(self, *keys: str) -> str:
        """Return the first of the keys that is there, or the first one."""
        return next((key for key in keys if self.has(key)), keys[0])

    def account(self, key: str, status: Status, note: str) -> None:
        """Record what became of a key and of all leaves below it, unless they are accounted for already."""
        for leaf in self.leaves_of(key):
            self.entries.setdefault(leaf, Entry(leaf, self.values[leaf], status, note))

    def leaves_of(self, key: str) -> list[str]:
        """Return the leaves at and below a key."""
        return [leaf for leaf in self.values if leaf == key or leaf.startswith(f"{key}.")]

    def mapped(self, key: str, target: str, note: str = "") -> Any:
        """Record that a key became `target` of the recipe, and return its value."""
        value = self.get(key)
        self.account(key, "mapped", f"{target}{': ' if note else ''}{note}")
        return value

    def harmless(self, key: str, why: str) -> None:
        """Record that the recipe needs nothing for a key."""
        self.account(key, "harmless", why)

    def renote(self, target: str, note: str, status: Status = "mapped") -> None:
        """Replace what is noted about keys that became `target` of the recipe."""
        for leaf, entry in self.entries.items():
            if entry.status == "mapped" and entry.note.partition(":")[0] == target:
                self.entries[leaf] = replace(entry, note=note, status=status)

    def unsupported(self, key: str, advice: str) -> None:
        """Record that a key has no counterpart, and what to do; a feature that is off needs none."""
        for leaf in self.leaves_of(key):
            if is_off(self.values[leaf]):
                self.account(leaf, "harmless", "is off")
            else:
                self.account(leaf, "not supported", advice)

    def differs(self, key: str, ours: str) -> None:
        """Record that a key has another value in the recipe."""
        for leaf in self.leaves_of(key):
            self.account(leaf, "default differs", f"theirs {show(self.values[leaf])}; ours {ours}")

    def state_default(self, key: str, theirs: Any, ours: str) -> None:
        """Record a default of the tool for a key that the input does not have."""
        self.defaults.append(
            Entry(key, theirs, "default differs", f"theirs {show(theirs)} by default; ours {ours}", False)
        )

    def left(self) -> list[str]:
        """Return the leaves that are not accounted for."""
        return [leaf for leaf in self.values if leaf not in self.entries]


def is_off(value: Any) -> bool:
    """Return whether a value switches a feature off."""
    return any(value is off or (type(value) is type(off) and value == off) for off in OFF)


def show(value: Any) -> str:
    """Return a value as short text."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
