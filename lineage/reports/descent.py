"""Which models of an evaluation descend from which: a model is compared with the one that it was trained from."""

from collections.abc import Callable
from typing import Literal

from schemas.base import JsonObject
from schemas.manifest import InputRecord, Manifest

Relation = Literal["parent", "base", "gate", "first"]
START_PORTS = frozenset({"model", "inputs.model", "base_model"})
"""Ports of a step that receive the model which it trains further."""
MERGED_PORTS = "models."
"""Prefix of the ports of a merge, whose result descends from each of them."""
Find = Callable[[str], Manifest | None]
Made = tuple[str, str | None]


def relate_models(manifest: Manifest, find: Find) -> dict[tuple[str, str], Relation]:
    """Return the pairs of models (model, against) of an evaluation that a reader should see, each with its reason.

    `parent`: the nearest evaluated ancestors, of which a merge has several. `base`: the most distant one. `gate`: a
    gate compares them. `first`: a model without an evaluated ancestor is compared with the first of the table. `find`
    returns the manifest of a key, or None.
    """
    names = {(r.key, r.output): _model_name(r) for r in _list_models(manifest) if r.key}
    ordered = [_model_name(record) for record in _list_models(manifest) if not record.port.startswith("against.")]
    parents = {names[made]: _find_nearest(made, names, find) for made in names}
    pairs: dict[tuple[str, str], Relation] = {}
    for name in ordered:
        ancestors = parents.get(name, [])
        pairs |= {(name, parent): "parent" for parent in ancestors}
        for base in _find_furthest(name, parents):
            pairs.setdefault((name, base), "base")
    for name in ordered[1:]:
        if not parents.get(name) and (ordered[0], name) not in pairs:
            pairs[name, ordered[0]] = "first"
    for gate in manifest.details.get("gates", []):
        if gate.get("against"):
            pairs.setdefault((str(gate.get("model")), str(gate["against"])), "gate")
    return pairs


def select_comparisons(manifest: Manifest, find: Find) -> list[JsonObject]:
    """Return the paired differences of an evaluation along its models' lineage, each with its `relation`."""
    of_pair: dict[tuple[str, str], list[JsonObject]] = {}
    for line in manifest.details.get("comparisons") or []:
        of_pair.setdefault((line["model"], line["against"]), []).append(line)
    chosen: list[JsonObject] = []
    for (model, against), relation in relate_models(manifest, find).items():
        lines = of_pair.get((model, against)) or [_reverse(line) for line in of_pair.get((against, model), [])]
        chosen += [line | {"relation": relation} for line in lines]
    return chosen


def _reverse(line: JsonObject) -> JsonObject:
    """Return the difference of two models from the other's side: the table may name a model before its parent."""
    ends = {"model": line["against"], "against": line["model"]}
    return line | ends | {"value": -line["value"], "low": -line["high"], "high": -line["low"]}


def _list_models(manifest: Manifest) -> list[InputRecord]:
    """Return the models that an evaluation evaluated, in the order of its table."""
    return [r for r in manifest.inputs if r.port == "model" or r.port.startswith((MERGED_PORTS, "against."))]


def _model_name(record: InputRecord) -> str:
    return record.port.partition(".")[2] or "model"


def _find_nearest(made: Made, names: dict[Made, str], find: Find) -> list[str]:
    """Return the nearest evaluated ancestors of a model, one per branch of its history."""
    nearest: dict[str, None] = {}
    level, seen = [made], {made}
    while level:
        below: list[Made] = []
        for starts in (_list_starts(each, find) for each in level):
            for start in (each for each in starts if each not in seen):
                seen.add(start)
                if start in names:
                    nearest[names[start]] = None
                else:
                    below.append(start)
        level = below
    return list(nearest)


def _list_starts(made: Made, find: Find) -> list[Made]:
    """Return the models that a model was trained or merged from."""
    manifest = find(made[0])
    if manifest is None:
        return []
    starts = [r for r in manifest.inputs if r.key and (r.port in START_PORTS or r.port.startswith(MERGED_PORTS))]
    return [(str(record.key), record.output) for record in starts]


def _find_furthest(name: str, parents: dict[str, list[str]]) -> list[str]:
    """Return the evaluated ancestors of a model that have no evaluated ancestor themselves."""
    roots: dict[str, None] = {}
    level, seen = list(parents.get(name, [])), {name}
    while level:
        above = [each for each in level if each not in seen]
        seen.update(above)
        roots |= {each: None for each in above if not parents.get(each)}
        level = [parent for each in above for parent in parents.get(each, [])]
    return list(roots)
