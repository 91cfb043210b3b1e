"""CycloneDX: the bill of materials of one model, with its ancestors and evaluations."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from cyclonedx import model as bom_model
from cyclonedx.model import HashAlgorithm, bom, component
from cyclonedx.model.component import ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from lineage.exports.model_card import make_data_entry, make_model_card
from lineage.exports.scope import Scope, collect_scope, end_time, stable_id
from lineage.layout import Layout
from lineage.records import GivenRecord, Record, read_record
from lineage.tracing.ancestry import trace
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.references import MODEL_TYPES

# The library's decorators hide the signatures of its classes from type checkers.
Bom: Any = bom.Bom
Component: Any = component.Component
HashType: Any = bom_model.HashType
Property: Any = bom_model.Property


def make_model_bom(layout: Layout, word: str) -> str:
    """Return the bill of materials as CycloneDX 1.6 JSON. Raise UnknownTarget, and PlanError unless it is one."""
    scope = collect_scope(layout, word)
    model = _find_model(scope)
    by_key = {record["key"]: record for record in scope.records}
    components = {(r["key"], name): _make_component(r, name) for r in scope.records for name in r["outputs"]}
    main = components[model["key"], _model_outputs(model)[0]]
    document = Bom(serial_number=UUID(stable_id("bom", model["key"])))
    document.metadata.timestamp = end_time(model)
    document.metadata.component = main
    document.metadata.tools.components.add(
        Component(name="posttrain", version=model.get("commit"), type=ComponentType.APPLICATION)
    )
    sources = {i["digest"]: _make_source(i) for r in scope.records for i in r["inputs"] if i.get("source")}
    packages = [_make_package(name, version) for name, version in sorted(model["versions"].items())]
    for part in (*components.values(), *sources.values(), *packages):
        if part is not main:
            document.components.add(part)
    for (key, _), part in components.items():
        needs = [
            need
            for input_record in by_key[key]["inputs"]
            if (need := _find_need(input_record, sources, components)) is not None
        ]
        document.register_dependency(part, [*needs, *(packages if part is main else [])])
    for part in (*sources.values(), *packages):
        document.register_dependency(part)
    cards = _make_cards(layout, scope, by_key)
    return _add_cards(JsonV1Dot6(document).output_as_string(), cards)


def _find_need(record: GivenRecord, sources: JsonObject, components: dict[tuple[str, str], Any]) -> Any | None:
    """Return the component of what a port received, or None if it is outside the document."""
    if record.get("source"):
        return sources[record["digest"]]
    return components.get((record.get("key") or "", record.get("output") or ""))


def _find_model(scope: Scope) -> Record:
    made = [record for record in scope.chosen if _model_outputs(record)]
    if len(made) == 1:
        return made[0]
    names = ", ".join(f"{r['step']} ({r['key'][:12]})" for r in made or scope.records if _model_outputs(r))
    count = f"{len(made)} models" if made else "no model"
    advice = f"name one: {names}" if made else f"it was made from: {names}" if names else "name a step that makes one"
    raise PlanError(f"bill of materials of {scope.target.word!r} ({scope.target.what}): {count} there; {advice}")


def _model_outputs(record: Record) -> list[str]:
    return [name for name, output in record["outputs"].items() if output["type"] in MODEL_TYPES]


def _make_component(record: Record, name: str) -> Any:
    output = record["outputs"][name]
    is_model = output["type"] in MODEL_TYPES
    files = [
        Component(
            name=file["path"],
            type=ComponentType.FILE,
            bom_ref=f"{record['key']}/{name}/{file['path']}",
            hashes=[
                HashType(alg=HashAlgorithm.SHA_256, content=file["sha256"]),
                HashType(alg=HashAlgorithm.MD5, content=file["md5"]),
            ],
        )
        for file in output["files"]
    ]
    facts = {
        "digest": output["digest"],
        "key": record["key"],
        "kind": record["kind"],
        "type": output["type"],
        "run": record["run"],
        "seed": record["seed"],
        "commit": record.get("commit"),
        "dirty": record.get("dirty"),
    }
    return Component(
        name=f"{record['recipe']}.{record['step']}.{name}",
        version=output["digest"][:16],
        type=ComponentType.MACHINE_LEARNING_MODEL if is_model else ComponentType.DATA,
        bom_ref=f"{record['key']}/{name}",
        components=files,
        properties=[Property(name=f"posttrain:{k}", value=str(v)) for k, v in facts.items() if v is not None],
    )


def _make_source(record: GivenRecord) -> Any:
    """Return the component of an outside source, identified by the digest of its content."""
    return Component(
        name=record["source"] or "",
        version=record["digest"][:16],
        bom_ref=f"source/{record['digest']}",
        type=ComponentType.MACHINE_LEARNING_MODEL if record["type"] in MODEL_TYPES else ComponentType.DATA,
        properties=[
            Property(name="posttrain:digest", value=record["digest"]),
            Property(name="posttrain:type", value=record["type"]),
        ],
    )


def _make_package(name: str, version: str) -> Any:
    if name == "python":
        return Component(name=name, version=version, type=ComponentType.PLATFORM, bom_ref="python")
    url = PackageURL("pypi", None, name, version)
    return Component(name=name, version=version, type=ComponentType.LIBRARY, bom_ref=url.to_string(), purl=url)


def _make_cards(layout: Layout, scope: Scope, by_key: dict[str, Record]) -> dict[str, JsonObject]:
    """Return, by bom-ref, fields that the library's classes lack: model cards of models, contents of data."""
    cards: dict[str, JsonObject] = {}
    for record in scope.records:
        evaluations = _find_evaluations(layout, record) if _model_outputs(record) else []
        for name, output in record["outputs"].items():
            reference = f"{record['key']}/{name}"
            if output["type"] in MODEL_TYPES:
                cards[reference] = {"modelCard": make_model_card(record, name, by_key, evaluations)}
            else:
                cards[reference] = {"data": [make_data_entry(record, name)]}
    return cards


def _find_evaluations(layout: Layout, record: Record) -> list[Record]:
    """Return the evaluations that read this artifact, oldest first."""
    readers = [node.record for node in trace(layout, record["key"]).down if _is_evaluation(node.record)]
    records = [read_record(Path(reader["folder"])) for reader in readers]
    evaluations = [r for r in records if r is not None and any(i.get("key") == record["key"] for i in r["inputs"])]
    return sorted(evaluations, key=lambda r: (r["started"], r["key"]))


def _is_evaluation(record: Record) -> bool:
    return any(output["type"] == "eval_report" for output in record["outputs"].values())


def _add_cards(text: str, cards: dict[str, JsonObject]) -> str:
    document = json.loads(text)
    for part in (document["metadata"]["component"], *document["components"]):
        part.update(cards.get(part["bom-ref"], {}))
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
