"""Exports are what their standards say, by the standards' own readers and schemas, and the same every time."""

import json
import os
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jsonschema
import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.serde import Serde
from prov.model import ProvActivity, ProvDerivation, ProvDocument, ProvEntity, ProvGeneration, ProvUsage
from referencing import Registry, Resource

from lineage.audit.log import append
from lineage.exports.model_bom import make_model_bom
from lineage.exports.openlineage_events import encode_json_lines, make_lineage_events, send_events
from lineage.exports.prov_document import make_prov_document, serialize_document
from lineage.tracing.target import UnknownTarget
from schemas.errors import PlanError
from schemas.plan import Input, Step

TABLE = [
    {"model": "tuned", "metric": "accuracy", "family": "all", "value": 0.5, "low": 0.25, "high": 0.75},
    {"model": "tuned", "metric": "accuracy", "family": "sums", "value": 0.625, "low": 0.3, "high": 0.9},
    {"model": "raw", "metric": "accuracy", "family": "all", "value": 0.125, "low": 0.0, "high": 0.4},
]


def with_a_merge(run):
    """The plan of the run with a step more, that made nothing."""
    made = Input(port="models.0.model", steps=("tuned",), output="policy", type="policy")
    outside = Input(port="base_model", source="hub:org/base@main", digest="c0" * 20, type="policy")
    step = {"name": "merged", "stage": "merged", "kind": "merge", "settings": {}, "seed": 7, "key": "ef" * 32}
    merged = Step(**step, identity={}, code={}, outputs={"policy": "policy"}, inputs=(made, outside))
    return run.plan().model_copy(update={"steps": (*run.plan().steps, merged)})


@pytest.fixture
def examined(small_run):
    """The small run with an exam of both models and a record of how it went; a step of it failed."""
    small_run.make(
        "exam",
        "evaluate",
        {"report": {"results.json": b"{}"}},
        {"report": "eval_report"},
        [("models.tuned", "tuned", "policy"), ("models.raw", "raw", "policy")],
        details={"table": TABLE},
    )
    append(small_run.layout, "run started", run="run-1", recipe="small")
    folder = small_run.layout.run("run-1")
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(with_a_merge(small_run).model_dump_json())
    events = [
        {"time": 1767225590.0, "type": "run", "run": "run-1", "state": "started", "recipe": "small", "steps": 7},
        {"time": 1767225620.0, "type": "step", "step": "merged", "state": "running"},
        {"time": 1767225625.0, "type": "step", "step": "merged", "state": "failed", "reason": "no memory"},
        {"time": 1767225630.0, "type": "run", "run": "run-1", "state": "ended", "exit_code": 1},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return small_run


def said(layout, word):
    return [json.loads(line) for line in encode_json_lines(make_lineage_events(layout, word)).splitlines()]


def of(events, job, state):
    return next(e for e in events if e["job"]["name"] == job and e["eventType"] == state)


def test_every_step_starts_once_and_ends_once_in_order(examined):
    events = said(examined.layout, "run-1")
    by_run = {}
    for event in events:
        by_run.setdefault(event["run"]["runId"], []).append(event["eventType"])
    jobs = {e["job"]["name"] for e in events}
    steps = ("base", "lessons", "lessons_clean", "tuned", "raw", "exam", "merged")
    assert jobs == {"small", *(f"small.{step}" for step in steps)}
    assert sorted(map(tuple, by_run.values())) == sorted([("START", "COMPLETE")] * 6 + [("START", "FAIL")] * 2)
    times = [datetime.fromisoformat(e["eventTime"]) for e in events]
    assert times == sorted(times)
    assert of(events, "small.tuned", "START")["eventTime"] == examined.made["tuned"].started
    failed = of(events, "small.merged", "FAIL")
    assert failed["run"]["facets"]["errorMessage"]["message"] == "no memory"
    read = [(d["namespace"], d["name"], d["facets"]["version"]["datasetVersion"]) for d in failed["inputs"]]
    tuned = examined.made["tuned"].outputs["policy"].digest
    assert read == [("posttrain", "small.tuned.policy", tuned), ("hf", "org/base", "c0" * 20)]


def test_datasets_link_the_step_that_wrote_them_with_those_that_read_them(examined):
    events = said(examined.layout, "tuned")
    wrote = of(events, "small.lessons_clean", "COMPLETE")["outputs"]
    read = of(events, "small.tuned", "COMPLETE")["inputs"]
    data = next(d for d in wrote if d["name"] == "small.lessons_clean.data")
    assert [(d["namespace"], d["name"]) for d in read] == [
        ("posttrain", "small.base.policy"),
        ("posttrain", "small.lessons_clean.data"),
    ]
    digest = examined.made["lessons_clean"].outputs["data"].digest
    assert data["facets"]["version"]["datasetVersion"] == read[1]["facets"]["version"]["datasetVersion"] == digest
    assert [(f["name"], f["type"]) for f in data["facets"]["schema"]["fields"]] == [
        ("id", "string"),
        ("answer", "string"),
    ]
    assert data["facets"]["dataQualityMetrics"]["rowCount"] == 2
    assert data["facets"]["dataQualityMetrics"]["columnMetrics"]["id"]["nullCount"] == 0
    assert data["outputFacets"]["outputStatistics"]["rowCount"] == 2
    outside = of(events, "small.lessons", "START")["inputs"]
    assert [(d["namespace"], d["name"]) for d in outside] == [("file", "./words")]
    parent = of(events, "small", "START")["run"]["runId"]
    assert all(e["run"]["facets"]["parent"]["run"]["runId"] == parent for e in events if e["job"]["name"] != "small")


def test_events_survive_the_clients_own_classes(examined):
    """Each event is taken apart and made again by the client, which checks ids, times and addresses."""
    for event in said(examined.layout, "run-1"):
        again = RunEvent(
            eventTime=event["eventTime"],
            producer=event["producer"],
            eventType=RunState(event["eventType"]),
            run=Run(**event["run"]),
            job=Job(**event["job"]),
            inputs=[InputDataset(**d) for d in event["inputs"]],
            outputs=[OutputDataset(**d) for d in event["outputs"]],
        )
        assert json.loads(Serde.to_json(again)) == event


def test_events_are_valid_by_the_schemas_of_openlineage(examined):
    folder = os.environ.get("OPENLINEAGE_SPEC")
    if folder is None:
        pytest.skip("OPENLINEAGE_SPEC names no folder: the directory `spec` of a checkout of OpenLineage")
    schemas = {
        p.stem: json.loads(p.read_text()) for p in [*Path(folder).glob("*.json"), *Path(folder).glob("facets/*.json")]
    }
    registry = Registry().with_resources([(s["$id"], Resource.from_contents(s)) for s in schemas.values()])

    def check(document, schema):
        validator = jsonschema.Draft202012Validator(
            schema, registry=registry, format_checker=jsonschema.FormatChecker()
        )
        assert [error.message for error in validator.iter_errors(document)] == []

    facets = 0
    for event in said(examined.layout, "run-1"):
        check(event, schemas["OpenLineage"])
        for facet in facets_of(event):
            name = facet["_schemaURL"].rpartition("/")[2]
            check(facet, {"$ref": f"{schemas[name]['$id']}#/$defs/{name}"})
            facets += 1
    assert facets > 50


def facets_of(value):
    if isinstance(value, dict):
        if "_schemaURL" in value:
            yield value
        for inner in value.values():
            yield from facets_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from facets_of(inner)


class Receiver(BaseHTTPRequestHandler):
    """Takes events as a lineage server would."""

    answer, seen = 201, []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(self.answer)
        self.end_headers()

    def log_message(self, *words):
        """Quiet."""


@pytest.fixture
def receiver():
    made = type("Made", (Receiver,), {"seen": [], "answer": 201})
    server = HTTPServer(("127.0.0.1", 0), made)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_receives_every_event_once(examined, receiver, monkeypatch):
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "planted-key")
    events = make_lineage_events(examined.layout, "run-1")
    assert send_events(events, receiver.url) == len(events) == 16
    assert [body for _, _, body in receiver.seen] == [json.loads(Serde.to_json(e)) for e in events]
    assert {(path, who) for path, who, _ in receiver.seen} == {("/api/v1/lineage", "Bearer planted-key")}


def test_a_run_reports_only_the_changes_it_made(examined, receiver, monkeypatch):
    from flows.history.exporting import send_run

    newer = examined.make(
        "more", "sft", {"policy": {"w": b"3"}}, {"policy": "policy"}, [("data", "lessons", "data")], run="run-2"
    )
    folder = examined.layout.run("run-2")
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(examined.plan().model_dump_json())
    send_run(examined.layout, "run-2")
    assert receiver.seen == []
    monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
    send_run(examined.layout, "run-2")
    assert [(b["job"]["name"], b["eventType"]) for _, _, b in receiver.seen] == [
        ("small.more", "START"),
        ("small.more", "COMPLETE"),
    ]
    assert receiver.seen[0][2]["inputs"][0]["name"] == "small.lessons.data"
    assert receiver.seen[1][2]["outputs"][0]["facets"]["version"]["datasetVersion"] == newer.outputs["policy"].digest


@pytest.mark.parametrize("password", ["", "user:planted-password@"])
def test_a_server_that_refuses_or_is_away_is_reported_without_its_address(examined, receiver, password):
    receiver.answer = 403
    url = receiver.url.replace("//", f"//{password}")
    with pytest.raises(PlanError, match="answered 403") as refused:
        send_events(make_lineage_events(examined.layout, "tuned"), url)
    assert "planted" not in str(refused.value)
    with pytest.raises(PlanError, match="cannot be reached") as away:
        send_events(make_lineage_events(examined.layout, "tuned"), f"http://{password}127.0.0.1:9")
    assert "planted" not in str(away.value)


@pytest.mark.parametrize("form", ["json", "provn"])
def test_a_prov_document_is_read_back_equal(examined, form):
    document = make_prov_document(examined.layout, "exam")
    text = serialize_document(document, form)
    assert ProvDocument.deserialize(content=text, format=form) == document
    assert serialize_document(make_prov_document(examined.layout, "exam"), form) == text


def name(record, attribute):
    return next(iter(record.get_attribute(attribute))).localpart


def test_prov_names_every_step_output_and_derivation(examined):
    document = make_prov_document(examined.layout, "tuned")
    made = {step: examined.made[step] for step in ("base", "lessons", "lessons_clean", "tuned")}
    assert {a.identifier.localpart for a in document.get_records(ProvActivity)} == {
        f"step/{m.key}" for m in made.values()
    }
    outputs = {f"{m.key}/{output}" for m in made.values() for output in m.outputs}
    entities = {e.identifier.localpart for e in document.get_records(ProvEntity)}
    assert entities == outputs | {f"source/{'ab' * 32}", "run/run-1"}
    tuned = made["tuned"].key
    assert {
        name(u, "prov:entity") for u in document.get_records(ProvUsage) if name(u, "prov:activity") == f"step/{tuned}"
    } == {
        f"{made['base'].key}/policy",
        f"{made['lessons_clean'].key}/data",
    }
    derived = {
        (name(d, "prov:generatedEntity"), name(d, "prov:usedEntity")) for d in document.get_records(ProvDerivation)
    }
    assert (f"{made['lessons'].key}/data", f"source/{'ab' * 32}") in derived
    assert (f"{tuned}/policy", f"{made['lessons_clean'].key}/data") in derived
    assert len(list(document.get_records(ProvGeneration))) == len(outputs)


def test_a_bill_of_materials_is_valid_and_the_library_reads_it(examined):
    text = make_model_bom(examined.layout, "tuned")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert make_model_bom(examined.layout, "tuned") == text
    document = json.loads(text)
    again = Bom.from_json(document)
    assert again.metadata.component.name == "small.tuned.policy"
    assert again.validate()
    needs = {str(d.ref): {str(n.ref) for n in d.dependencies} for d in again.dependencies}
    made = examined.made
    main = f"{made['tuned'].key}/policy"
    assert needs[main] >= {f"{made['base'].key}/policy", f"{made['lessons_clean'].key}/data"}
    assert needs[f"{made['lessons'].key}/data"] == {f"source/{'ab' * 32}"}
    files = document["metadata"]["component"]["components"]
    expected = made["tuned"].outputs["policy"].files[0]
    hashes = {"MD5": expected.md5, "SHA-256": expected.sha256}
    assert [(f["name"], {h["alg"]: h["content"] for h in f["hashes"]}) for f in files] == [(expected.path, hashes)]


def test_a_model_card_holds_data_and_every_exam_with_its_intervals(examined):
    document = json.loads(make_model_bom(examined.layout, "tuned"))
    card = document["metadata"]["component"]["modelCard"]
    made = examined.made
    assert card["modelParameters"]["approach"] == {"type": "supervised"}
    assert {d["ref"] for d in card["modelParameters"]["datasets"]} == {
        f"{made['lessons_clean'].key}/data",
        f"{made['lessons'].key}/data",
        f"source/{'ab' * 32}",
    }
    all_, sums = card["quantitativeAnalysis"]["performanceMetrics"]
    assert (all_["type"], all_["value"], "slice" in all_) == ("accuracy (small.exam)", "0.5", False)
    assert all_["confidenceInterval"] == {"lowerBound": "0.25", "upperBound": "0.75"}
    assert (sums["slice"], sums["value"]) == ("sums", "0.625")
    assert sums["confidenceInterval"] == {"lowerBound": "0.3", "upperBound": "0.9"}
    clean = next(c for c in document["components"] if c["bom-ref"] == f"{made['lessons_clean'].key}/data")
    facts = {p["name"]: p["value"] for p in clean["data"][0]["contents"]["properties"]}
    assert (facts["posttrain:rows"], facts["posttrain:dropped:contaminated"]) == ("2", "1")


def test_what_is_not_one_model_is_refused_with_those_that_are(examined):
    with pytest.raises(PlanError, match=r"no model there; name a step that makes one"):
        make_model_bom(examined.layout, "lessons")
    with pytest.raises(PlanError, match=r"no model there; it was made from: base \(\w{12}\), tuned"):
        make_model_bom(examined.layout, "exam")
    with pytest.raises(PlanError, match=r"3 models there; name one: base"):
        make_model_bom(examined.layout, "run-1")
    for export in (make_model_bom, make_prov_document, make_lineage_events):
        with pytest.raises(UnknownTarget, match="nothing here is called 'nowhere'"):
            export(examined.layout, "nowhere")
