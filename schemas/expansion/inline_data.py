"""`data: path:chats.jsonl` in a stage: a stage of kind `data` that stands before it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from schemas.data_files import is_data_file
from schemas.expansion.expand import Unit
from schemas.expansion.names import Target
from schemas.references import Reference, RowsRef, is_pattern
from schemas.row_formats import Emit
from schemas.source.tree import Node, join_path, make_nodes, merge_nodes
from schemas.source.variables import Scope, substitute
from schemas.stages.base import BaseStage
from schemas.stages.data import Data
from schemas.stages.union import traits_of

OWN_ROWS = ("rows.parquet", "rows-00000.parquet")
"""Files that hold posttrain's own rows: a folder with one of them is read in place."""
KIND = "data"


@dataclass(frozen=True)
class Port:
    """A key that takes rows, and the artifact type that a source there becomes."""

    name: str
    emit: str


def add_data_stages(units: list[Unit], defaults: Node | None, scope: Scope, folders: tuple[Path, ...]) -> list[Unit]:
    """Return the steps with one of kind `data` for each source that is written in place of a reference.

    Equal sources share one step, named after the first stage that has it: `sft-data`. `folders` are searched for
    relative paths. Raise RecipeError.
    """
    base = defaults.get(KIND) if defaults is not None else None
    base = None if base is None else substitute(base, scope, join_path("defaults", KIND))
    made: dict[str, str] = {}
    complete: list[Unit] = []
    for unit in units:
        for port in _list_written_ports(unit.node):
            written = unit.node.value[port.name]
            if not _is_source(written, folders):
                continue
            node = _make_stage(written, port.emit, base)
            content = json.dumps([node.plain(), _list_steps(node, unit)], sort_keys=True)
            if content not in made:
                made[content] = f"{unit.name}-{port.name}"
                path = join_path(unit.path, port.name)
                complete.append(Unit(made[content], made[content], path, node, unit.names, unit.unless))
            name = made[content]
            value = {**unit.node.value, port.name: Node(name, written.mark, written.key)}
            unit = replace(unit, node=unit.node.with_value(value), names={**unit.names, name: Target((name,))})
        complete.append(unit)
    return complete


def list_row_ports(stage: type[BaseStage]) -> list[Port]:
    """Return the keys of a kind that take rows."""
    if stage is Data:
        return []
    ports = []
    for name, field in stage.model_fields.items():
        for reference in _list_references(field.annotation):
            emit = reference.outside or reference.accepts[0]
            if reference is RowsRef or (len(reference.accepts) == 1 and reference.accepts[0] in get_args(Emit)):
                ports.append(Port(name, emit))
    return ports


def _list_written_ports(node: Node) -> list[Port]:
    kind = node.get("kind")
    stage: type[BaseStage] = traits_of(kind.value) if kind is not None and isinstance(kind.value, str) else BaseStage
    return [port for port in list_row_ports(stage) if node.get(port.name) is not None]


def _list_references(annotation: object) -> list[type[Reference]]:
    parts = getattr(annotation, "__args__", (annotation,))
    return [part for part in parts if isinstance(part, type) and issubclass(part, Reference)]


def _is_source(written: Node, folders: tuple[Path, ...]) -> bool:
    """Return whether a value is a source of rows in some format, not a reference to posttrain's own rows."""
    if written.is_map or written.is_list:
        return True
    if not isinstance(written.value, str):
        return False
    scheme, _, rest = written.value.partition(":")
    if scheme != "path" or not rest.strip():
        return scheme == "hub" and ":" in written.value
    if is_data_file(rest) or is_pattern(rest):
        return True
    rows = next((folder for base in folders if (folder := _find_folder(base, rest)) is not None), None)
    return rows is not None and not any((rows / name).is_file() for name in OWN_ROWS)


def _find_folder(base: Path, rest: str) -> Path | None:
    try:
        folder = base / Path(rest).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # no path at all: planning says what is wrong with it
        return None


def _make_stage(written: Node, emit: str, base: Node | None) -> Node:
    """Return the stage that a source stands for: a source, a list of them, or all keys of the stage."""
    node = written if written.get("sources") is not None else Node({"sources": written}, written.mark, written.key)
    own: Mapping[str, str] = {"kind": KIND, "emit": emit}
    node = node.with_value({**make_nodes(own, written.mark).value, **node.value})
    return node if base is None else merge_nodes(base, node)


def _list_steps(node: Node, unit: Unit) -> list[tuple[str, ...]]:
    """Return the steps that the names in sources stand for: the same name means other steps in each iteration."""
    sources = node.value["sources"]
    entries = sources.value if sources.is_list else [sources]
    words = [entry.get("from") or entry for entry in entries]
    words += [
        table
        for entry in entries
        if (tables := entry.get("tables")) and tables.is_map
        for table in tables.value.values()
    ]
    return [unit.names[word.value].steps for word in words if isinstance(word.value, str) and word.value in unit.names]
