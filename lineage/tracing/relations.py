"""How a row of data came into each model after it: trained on, sampled, offered, or only reachable.

trained on   a gradient was computed from it
sampled      it was drawn (a prompt was asked, a row was in a batch), and no gradient came of it
offered      it was in a table that the stage could draw from
reachable    the model was made from something that was made with it, and no record says more
"""

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

from lineage.digests import digest_file
from lineage.records import Record, table_name
from lineage.state_files import Unreadable, parse_json, read_regular, sha256_of
from lineage.tracing.graph import Node
from schemas.references import MODEL_TYPES
from schemas.stages.union import traits_of

How = Literal["trained on", "sampled", "offered", "reachable"]
RANK: tuple[How, ...] = ("reachable", "offered", "sampled", "trained on")
USED = "rows_used.parquet"
TRAJECTORIES = "trajectories.parquet"


@dataclass(frozen=True)
class Relation:
    """How a row came into a model."""

    how: How
    through: str | None = None
    """The step where that happened, when the model was only made from what that step made."""
    sampled: int | None = None
    """How often that step drew it; None where nothing was recorded."""
    trained: int | None = None
    """How often a gradient was computed from it."""
    note: str = ""
    """What is not known, or how else it was read."""

    def sentence(self) -> str:
        """Return the relation in words."""
        through = f", through {self.through}" if self.through else ""
        times = f": drawn {self.sampled} times, a gradient from {self.trained}" if self.sampled else ""
        return f"{self.how}{through}{times}{f' ({self.note})' if self.note else ''}"


def is_model(record: Record) -> bool:
    """Return whether a step made a model."""
    return any(output["type"] in MODEL_TYPES for output in record["outputs"].values())


def find_relations(row: str, holders: Iterable[str], after: Iterable[Node]) -> dict[str, Relation]:
    """Return by key of each model among `after` how the row came into it; `holders` hold the row."""
    records = {node.record["key"]: node.record for node in after}
    keys, found_relations = frozenset(holders), dict[str, Relation]()
    edges = {key: {made_by for made_by in _makers(record) if made_by in records} for key, record in records.items()}
    try:
        order = list(TopologicalSorter(edges).static_order())
    except CycleError:  # no manifests that posttrain wrote
        order = []
    for key in order:
        if key not in keys:
            found_relations[key] = _find_closest(row, records[key], keys, found_relations, records)
    return {key: found_relations.get(key, Relation("reachable")) for key, r in records.items() if is_model(r)}


def _find_closest(
    row: str, record: Record, holders: frozenset[str], relations: dict[str, Relation], records: dict[str, Record]
) -> Relation:
    """Return the closest of a step's own relation and those that its inputs have."""
    ports = [i["port"] for i in record["inputs"] if i.get("key") in holders]
    direct = [_relate_drawn(row, record, ports)] if ports and is_model(record) else []
    inherited = [_inherit(relations[key], records[key], record) for key in _makers(record) if key in relations]
    return max([*direct, *inherited, Relation("reachable")], key=lambda relation: RANK.index(relation.how))


def _makers(record: Record) -> list[str]:
    """Return the keys of the artifacts that a step read."""
    return [key for input_record in record["inputs"] if (key := input_record.get("key"))]


def _inherit(relation: Relation, parent: Record, record: Record) -> Relation:
    """Return the relation that a model has from one that it was made from."""
    if not (is_model(parent) and is_model(record)):
        return Relation("reachable", relation.through or parent["step"])
    return Relation(relation.how, relation.through or parent["step"], relation.sampled, relation.trained, relation.note)


def _relate_drawn(row: str, record: Record, ports: list[str]) -> Relation:
    """Return what a step did with a row of a table that it read."""
    if traits_of(record["kind"]).data_port not in ports:
        return Relation("offered", note=f"read as {', '.join(ports)}")
    folder = Path(record["folder"])
    counts = _count_used(folder, row) if (folder / USED).is_file() else _count_trajectories(record, row)
    if isinstance(counts, str):
        return Relation("offered", note=counts)
    sampled, trained = counts
    how: How = "trained on" if trained else "sampled" if sampled else "offered"
    return Relation(how, None, sampled, trained)


def _count_used(folder: Path, row: str) -> tuple[int, int] | str:
    """Return (times drawn, times trained on) by the sealed record of a step, or why that is unknown."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # a question about anything but rows does not need it

    try:
        sealed = parse_json(read_regular(folder / "seal.json")).get(USED)
        if sealed != sha256_of(read_regular(folder / USED)):
            return "the record of its rows is not the sealed one"
        table = pq.read_table(folder / USED, filters=[("id", "=", row)])
        return sum(table["sampled"].to_pylist()), sum(table["trained"].to_pylist())
    except (Unreadable, ValueError, AttributeError, KeyError, TypeError, pa.ArrowException):
        return "the record of its rows cannot be read"


def _count_trajectories(record: Record, row: str) -> tuple[int, int] | str:
    """Return the same from an RL stage's trajectories, for artifacts without a record of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts, tables = (0, 0), 0
    for name, output in record["outputs"].items():
        for file in output["files"]:
            if output["type"] != "trajectories" or table_name(file["path"]) != TRAJECTORIES:
                continue
            path = Path(record["folder"], "outputs", name, file["path"])
            try:
                if digest_file(path, "").sha256 != file["sha256"]:
                    return "its trajectories are damaged"
                table = pq.read_table(path, columns=["prompt_id", "advantage"], filters=[("prompt_id", "=", row)])
                advantages = table["advantage"].to_pylist()
            except (OSError, KeyError, pa.ArrowException):
                return "its trajectories cannot be read"
            counts, tables = (counts[0] + len(advantages), counts[1] + sum(map(bool, advantages))), tables + 1
    if not tables:
        return "which rows were drawn was not recorded"
    partial = record["identity"]["settings"].get("log_trajectories", 1.0) < 1
    return "only a part of its trajectories was kept" if partial and not counts[0] else counts
