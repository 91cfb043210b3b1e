"""Walks over the graph of artifacts: edges are the inputs in the manifests."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lineage.catalogue.index import Index
from lineage.records import Record


@dataclass(frozen=True)
class Node:
    """An artifact on a walk: how far from its start, and through which port it was reached."""

    depth: int
    record: Record
    """Its slim record."""
    via: str = ""
    """The reader's port; empty where the walk began."""


def collect_ancestors(index: Index, keys: Iterable[str]) -> list[Node]:
    """Return everything that artifacts were made from, each once, depth first, including themselves."""
    return _walk(index, keys, index.parents)


def collect_descendants(index: Index, keys: Iterable[str], passes: Callable[[str, str], bool]) -> list[Node]:
    """Return everything that artifacts went into; a false `passes(key, kind)` stops before that artifact."""
    return _walk(index, keys, lambda key: [(k, port) for k, port, kind in index.readers(key) if passes(k, kind)])


def _walk(index: Index, keys: Iterable[str], neighbours: Callable[[str], list[tuple[str, str]]]) -> list[Node]:
    """Walk depth first without recursion: chains may be longer than Python's stack."""
    waiting = [(0, key, "") for key in reversed(list(keys))]
    nodes: dict[str, Node] = {}
    while waiting:
        depth, key, via = waiting.pop()
        record = index.record(key) if key not in nodes else None
        if record is None:
            continue
        nodes[key] = Node(depth, record, via)
        waiting += [(depth + 1, other, port) for other, port in reversed(neighbours(key))]
    return list(nodes.values())
