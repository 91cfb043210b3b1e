"""Lineage of a target: ancestors down to rows of data, and descendants that used it."""

from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from lineage.audit.approvals import describe_decision, read_artifact_decisions
from lineage.catalogue.index import Index, query_index
from lineage.layout import Layout
from lineage.records import Record
from lineage.reports.formatting import format_count
from lineage.tracing.graph import Node, collect_ancestors, collect_descendants
from lineage.tracing.pulled_evidence import describe_claims, read_claims
from lineage.tracing.relations import RANK, Relation, find_relations, is_model
from lineage.tracing.target import Target, find_target
from schemas.base import JsonObject
from schemas.stages.union import traits_of


@dataclass(frozen=True)
class Lineage:
    """The ancestors (`up`) and descendants (`down`) of a target; both begin with the target's own artifacts."""

    target: Target
    up: list[Node]
    down: list[Node]

    def as_json(self) -> JsonObject:
        """Return plain data for `--json`."""
        return {
            "target": self.target.word,
            "what": self.target.what,
            "dropped": [dict(zip(("key", "reason", "detail"), d, strict=True)) for d in self.target.dropped],
            "up": [_describe_node(node) for node in self.up],
            "down": [self._down_json(node) for node in self.down],
        }

    def _down_json(self, node: Node) -> JsonObject:
        how = self.relations.get(node.record["key"])
        return _describe_node(node) | ({"relation": asdict(how)} if how else {})

    @cached_property
    def relations(self) -> dict[str, Relation]:
        """For a row of data, by the key of each model after it, how the row came into it."""
        row = self.target.row
        return {} if row is None else find_relations(row, self.target.keys, self.down)


def trace(layout: Layout, word: str) -> Lineage:
    """Return the lineage of a target; raise UnknownTarget.

    A row is followed through the artifacts that hold it: a curation whose output lacks the row does not pass it on.
    """
    return query_index(layout, lambda index: trace_in(index, word))


def trace_in(index: Index, word: str) -> Lineage:
    """Return the lineage of a target in an index; raise UnknownTarget."""
    target = find_target(index, word)
    holders = set(target.keys)

    def passes(key: str, kind: str) -> bool:
        return target.row is None or not traits_of(kind).drops_rows or key in holders

    return Lineage(target, collect_ancestors(index, target.keys), collect_descendants(index, target.keys, passes))


def _describe_node(node: Node) -> JsonObject:
    record = node.record
    shown = (
        "step",
        "kind",
        "key",
        "recipe",
        "run",
        "seed",
        "commit",
        "dirty",
        "versions",
        "started",
        "inputs",
        "folder",
    )
    outputs = {name: {"type": o["type"], "digest": o["digest"]} for name, o in record["outputs"].items()}
    dropped = record["details"].get("dropped") if traits_of(record["kind"]).drops_rows else None
    facts = {name: record.get(name) for name in shown}
    more = {"outputs": outputs, "dropped": dropped, "decisions": read_artifact_decisions(record)}
    elsewhere = {"elsewhere": claims} if (claims := read_claims(record)) else {}
    return {"depth": node.depth, "via": node.via, **facts, **more, **elsewhere}


def render(lineage: Lineage) -> Group:
    """Return the two trees for a terminal."""
    target = lineage.target
    head = Text(f"{target.word}: {target.what}", style="bold")
    lost = [
        Text(f"dropped by {_name_step(lineage, key)}: {reason} {detail}".rstrip(), style="yellow")
        for key, reason, detail in target.dropped
    ]
    up = _make_tree("made from", lineage.up, _describe_record)
    down = _make_tree(
        f"went into ({_count_models(lineage)})", lineage.down, lambda record: _describe_relation(lineage, record)
    )
    return Group(head, *lost, up, down)


def _count_models(lineage: Lineage) -> str:
    """Return how many models descend from a target; for a row, how many by each relation."""
    models = sum(is_model(node.record) for node in lineage.down)
    ways = Counter(relation.how for relation in lineage.relations.values())
    each = ", ".join(f"{ways[how]} {how}" for how in reversed(RANK) if ways[how])
    return f"{format_count(models, 'model')}{f': {each}' if each else ''}"


def _describe_relation(lineage: Lineage, record: Record) -> list[str]:
    """Return how a row came into a model, and the decisions about an evaluation."""
    relation = lineage.relations.get(record["key"])
    return [*([relation.sentence()] if relation else []), *_describe_decisions(record)]


def _name_step(lineage: Lineage, key: str) -> str:
    steps = {node.record["key"]: node.record["step"] for node in (*lineage.up, *lineage.down)}
    return f"{steps[key]} ({key[:12]})" if key in steps else key[:12]


def _make_tree(title: str, nodes: list[Node], facts: Any) -> Tree:
    """Return a rich tree of nodes in the order of visits; nodes seen before are not drawn again."""
    root = Tree(Text(title, style="bold"))
    branch = {-1: root}
    for node in nodes:
        parent = branch[node.depth - 1]
        branch[node.depth] = parent.add(_label_node(node))
        for fact in facts(node.record):
            branch[node.depth].add(Text(fact, style="dim"))
    return root


def _label_node(node: Node) -> Text:
    record = node.record
    outputs = ", ".join(f"{name} {o['type']} {o['digest'][:12]}" for name, o in record["outputs"].items())
    via = f"{node.via} ← " if node.via else ""
    return Text.assemble(via, (record["step"], "bold"), f" {record['kind']} {record['key'][:12]}  ", (outputs, "cyan"))


def _describe_record(record: Record) -> list[str]:
    """Return the inputs of an artifact that are not artifacts: outside sources, drops, seed, code."""
    sources = [f"{i['port']} ← {i['source']} {i['digest'][:12]}" for i in record["inputs"] if i.get("source")]
    dropped = record["details"].get("dropped") if traits_of(record["kind"]).drops_rows else None
    lost = [f"{reason}: {number} rows dropped" for reason, number in (dropped or {}).items() if number]
    changes = " with changes" if record.get("dirty") else ""
    commit = f"commit {hash_[:12]}{changes}" if (hash_ := record.get("commit")) else "no commit"
    return [*sources, *lost, f"seed {record['seed']}, {commit}, run {record['run']}", *_describe_decisions(record)]


def _describe_decisions(record: Record) -> list[str]:
    """Return the decisions about the gates of an evaluation, and what other checkouts say of an artifact."""
    own = [f"gate on {one.get('metric')} {describe_decision(one)}" for one in read_artifact_decisions(record)]
    return [*own, *describe_claims(record)]
