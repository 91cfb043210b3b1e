"""What speaks for a model, to go with its files: evaluations with gates, decisions of people, moves of champions."""

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lineage.audit.approvals import describe_decision, read_artifact_decisions
from lineage.audit.chain import MOVES, read_unbroken_chain
from lineage.audit.log import Entry
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from lineage.records import Record, read_records
from lineage.tracing.pulled_evidence import read_pulled_entries
from schemas.base import JsonObject

FILE = "posttrain.json"
"""Name of the file with the evidence of an exported model."""


def collect_evidence(layout: Layout, key: str) -> JsonObject:
    """Return the evidence for the model of an artifact as JSON, with the signed entries of the audit log.

    The entries and their keys prove that the log of this checkout had them. Raise PlanError if the log does not verify.
    """
    records = read_records(layout)
    model = next(record for record in records if record["key"] == key)
    evaluations = [record for record in records if _names_of(record, key)]
    keys = {record["key"] for record in evaluations}
    known = [*read_unbroken_chain(layout).entries, *read_pulled_entries(layout)]
    entries = [entry for entry in known if _is_about(entry, key, keys)]
    signers = {entry["signature"]["keyid"] for entry in entries}
    public = {name: each for name, each in load_trusted_keys(layout).items() if name in signers}
    return {
        "model": {
            "recipe": model["recipe"],
            "step": model["step"],
            "run": model["run"],
            "key": key,
            "digests": {name: output["digest"] for name, output in model["outputs"].items()},
        },
        "champion": [_describe_move(entry) for entry in entries if entry["action"] in MOVES],
        "evaluations": [_describe_evaluation(record, key) for record in evaluations],
        "audit": entries,
        "public_keys": {
            name: each.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
            for name, each in sorted(public.items())
        },
    }


def find_promoting_evaluations(evidence: JsonObject) -> list[str]:
    """Return the keys of the evaluations that promoted a model."""
    return list(dict.fromkeys(move["evaluation"] for move in evidence["champion"] if move.get("evaluation")))


def _names_of(record: Record, key: str) -> set[str]:
    """Return the names under which an evaluation has a model; empty for other artifacts."""
    ports = {i["port"] for i in record["inputs"] if i.get("key") == key}
    judged = {port.removeprefix("models.") for port in ports if port == "model" or port.startswith("models.")}
    return judged if record["details"].get("table") else set()


def _is_about(entry: Entry, key: str, evaluations: set[str]) -> bool:
    facts = entry["facts"]
    if entry["action"] in MOVES:
        return facts.get("key") == key
    return entry["action"] in ("approve", "reject") and facts.get("key") in evaluations


def _describe_move(entry: Entry) -> JsonObject:
    facts = entry["facts"]
    evidence = facts.get("evidence") or {}
    return {
        "action": entry["action"],
        "of": facts.get("model"),
        "version": facts.get("version"),
        "at": entry["at"],
        "who": entry["who"],
        "gates": evidence.get("gates", []),
        "evaluation": evidence.get("key"),
    }


def _describe_evaluation(record: Record, key: str) -> JsonObject:
    names = _names_of(record, key)
    return {
        "recipe": record["recipe"],
        "step": record["step"],
        "run": record["run"],
        "key": record["key"],
        "scores": [row for row in record["details"]["table"] if row["model"] in names],
        "gates": [gate for gate in record["details"].get("gates", []) if gate.get("model") in names],
        "decisions": [describe_decision(decision) for decision in read_artifact_decisions(record)],
    }
