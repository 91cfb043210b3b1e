"""`contaminated_rows: drop` and `stop` in a stage that trains: a curation of its rows that stands before it."""

import json
from collections.abc import Mapping
from dataclasses import replace

from schemas.expansion.expand import Unit
from schemas.expansion.names import Target, split_reference
from schemas.source.tree import Node, join_path, make_error, make_nodes
from schemas.stages.union import traits_of

KEY = "contaminated_rows"
MAX_DROPPED: Mapping[str, float] = {"drop": 1.0, "stop": 0.0}
"""Words of the key that need a curation: the largest share of the rows that it may drop."""


def add_curations(units: list[Unit]) -> list[Unit]:
    """Return the steps with a curation that only decontaminates before each one that drops rows or stops.

    Stages that treat the same rows alike share one, named after the first: `tuned-decontaminated`. Raise RecipeError
    for rows that no stage makes.
    """
    made: dict[str, str] = {}
    complete: list[Unit] = []
    for unit in units:
        word, key = unit.node.get(KEY), _find_data_port(unit.node)
        port = unit.node.get(key) if key else None
        if word is not None and key is not None and port is not None and str(word.value) in MAX_DROPPED:
            content = _identify_rows(unit, key, port, str(word.value))
            if content is not None and content not in made:
                made[content] = f"{unit.name}-decontaminated"
                node = make_nodes(_make_stage(str(port.value), str(word.value)), word.where)
                path = join_path(unit.path, KEY)
                complete.append(Unit(made[content], made[content], path, node, unit.names, unit.unless))
            if content is not None:
                name = made[content]
                value = {**unit.node.value, key: Node(name, port.mark, port.key)}
                unit = replace(unit, node=unit.node.with_value(value), names={**unit.names, name: Target((name,))})
        complete.append(unit)
    return complete


def _identify_rows(unit: Unit, key: str, port: Node, word: str) -> str | None:
    """Return what a curation of a stage's rows depends on; None for an unknown name, which validation reports.

    Raise RecipeError for rows that no stage makes.
    """
    reference = split_reference(port.value, unit.names) if isinstance(port.value, str) else None
    if reference is not None:
        return json.dumps([unit.names[reference[0]].steps or port.value, reference[1], word])
    if isinstance(port.value, str) and ":" in port.value:
        advice = f"convert them with a stage of kind data: `{key}: {{from: {port.value}}}`"
        raise make_error(port.where, join_path(unit.path, KEY), f"`{KEY}: {word}` cannot read these rows", advice)
    return None


def _find_data_port(node: Node) -> str | None:
    """Return the key of the rows that a stage trains on; None for kinds that train on none."""
    kind = node.get("kind")
    return traits_of(kind.value).data_port if kind is not None and isinstance(kind.value, str) else None


def _make_stage(rows: str, word: str) -> dict[str, object]:
    """Return the keys of a curation that keeps all rows but those that ask evaluation problems."""
    return {
        "kind": "curate",
        "data": rows,
        "exact_dedup": False,
        "min_length": 0,
        "decontaminate": {"max_dropped": MAX_DROPPED[word]},
    }
