"""W3C PROV: every output an entity, every step an activity, posttrain and its users agents."""

import io
from datetime import datetime
from urllib.parse import quote

from prov.constants import PROV, PROV_LABEL
from prov.model import PROV_ROLE, PROV_TYPE, Namespace, ProvDocument

from lineage.audit.log import describe_author, read_entries
from lineage.exports.scope import collect_scope, end_time
from lineage.layout import Layout
from lineage.records import GivenRecord, Record

NAMESPACE = Namespace("pt", "urn:posttrain:")
SOFTWARE = "pt:posttrain"


def make_prov_document(layout: Layout, word: str) -> ProvDocument:
    """Return the PROV document of a target. Raise UnknownTarget.

    The audit log names the user who started a run; a run that is older than the log has no user.
    """
    scope = collect_scope(layout, word)
    document = ProvDocument()
    document.add_namespace(NAMESPACE)
    document.agent(SOFTWARE, {PROV_TYPE: PROV["SoftwareAgent"]})
    people = {e["facts"]["run"]: describe_author(e) for e in read_entries(layout) if e["action"] == "run started"}
    for run in sorted({record["run"] for record in scope.records}):
        _add_run(document, run, people.get(run))
    for record in scope.records:
        _add_step(document, record)
    return document


def serialize_document(document: ProvDocument, format_: str) -> str:
    """Return PROV-JSON (`json`) or PROV-N (`provn`)."""
    stream = io.StringIO()
    document.serialize(stream, format=format_, **({"indent": 1} if format_ == "json" else {}))
    return stream.getvalue().rstrip("\n") + "\n"


def _add_run(document: ProvDocument, run: str, who: str | None) -> None:
    """Add a run as a plan that its steps follow, with posttrain as the delegate of the user who started it."""
    document.entity(f"pt:run/{run}", {PROV_TYPE: PROV["Plan"]})
    if who:
        person = f"pt:user/{quote(who, safe='')}"
        if not document.get_record(person):
            document.agent(person, {PROV_TYPE: PROV["Person"], PROV_LABEL: who})
            document.actedOnBehalfOf(SOFTWARE, person)
        document.wasAttributedTo(f"pt:run/{run}", person)


def _add_step(document: ProvDocument, record: Record) -> None:
    activity = f"pt:step/{record['key']}"
    facts = {"step": record["step"], "kind": record["kind"], "recipe": record["recipe"], "seed": record["seed"]}
    code = {"commit": record["commit"], "dirty": record["dirty"]} if record.get("commit") else {}
    described = {f"pt:{name}": value for name, value in (facts | code).items()}
    document.activity(activity, datetime.fromisoformat(record["started"]), end_time(record), described)
    document.wasAssociatedWith(activity, SOFTWARE, f"pt:run/{record['run']}")
    for input_record in record["inputs"]:
        read = _add_input(document, input_record)
        document.used(activity, read, None, None, {PROV_ROLE: input_record["port"]})
    for name, output in record["outputs"].items():
        made = f"pt:{record['key']}/{name}"
        document.entity(made, {PROV_TYPE: NAMESPACE[output["type"]], "pt:digest": output["digest"], "pt:output": name})
        document.wasGeneratedBy(made, activity, end_time(record), None, {PROV_ROLE: name})
        for input_record in record["inputs"]:
            document.wasDerivedFrom(made, _entity_name(input_record), activity)


def _entity_name(record: GivenRecord) -> str:
    return f"pt:{record['key']}/{record['output']}" if record.get("key") else f"pt:source/{record['digest']}"


def _add_input(document: ProvDocument, record: GivenRecord) -> str:
    """Return the entity that a port received; outside sources are added here, other entities by their step."""
    name = _entity_name(record)
    if not record.get("key") and not document.get_record(name):
        facts = {"pt:reference": record["source"], "pt:digest": record["digest"]}
        document.entity(name, {PROV_TYPE: NAMESPACE[record["type"]], **facts})
    return name
