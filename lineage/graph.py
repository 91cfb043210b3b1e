"""The graph of artifacts: edges are the inputs in the manifests."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lineage.records import Record


@dataclass(frozen=True)
class Node:
    """An artifact on a walk: how far from its start, and through which port it was reached."""

    depth: int
    record: Record
    via: str = ""
    """The reader's port; empty where the walk began."""


@dataclass(frozen=True)
class Graph:
    """Artifacts by key with their edges in both directions."""

    records: dict[str, Record]
    children: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    """Key to (key of the reader, port, artifact type)."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Graph":
        """The graph of these manifests."""
        children: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        found = {record["key"]: record for record in records}
        for key, record in found.items():
            for item in record["inputs"]:
                if item.get("key"):
                    children[item["key"]].append((key, item["port"], item["type"]))
        return cls(found, dict(children))

    def up(self, keys: Iterable[str]) -> list[Node]:
        """Everything these artifacts were made from, each once, in order of depth first visits, the start included."""
        return self._walk(
            keys, lambda key: [(i["key"], i["port"]) for i in self.records[key]["inputs"] if i.get("key")]
        )

    def down(self, keys: Iterable[str], passes: Callable[[Record], bool] = lambda record: True) -> list[Node]:
        """Everything these artifacts went into; `passes(record)` false stops the walk before that artifact."""

        def readers(key: str) -> list[tuple[str, str]]:
            return [(k, port) for k, port, _ in self.children.get(key, []) if passes(self.records[k])]

        return self._walk(keys, readers)

    def _walk(self, keys: Iterable[str], neighbours: Callable[[str], list[tuple[str, str]]]) -> list[Node]:
        """Depth first without recursion: chains may be longer than Python's stack."""
        waiting = [(0, key, "") for key in reversed(list(keys))]
        seen: dict[str, Node] = {}
        while waiting:
            depth, key, via = waiting.pop()
            if key in seen or key not in self.records:
                continue
            seen[key] = Node(depth, self.records[key], via)
            waiting += [(depth + 1, other, port) for other, port in reversed(neighbours(key))]
        return list(seen.values())
