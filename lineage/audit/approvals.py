"""Decisions of people about failed gates: who, when and why; one JSON line per decision, append-only.

A decision is stored under the key of the evaluation whose gate it is about: an equal evaluation does not ask again. No
key depends on decisions. The latest decision counts.
"""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from lineage.audit import log as audit_log
from lineage.layout import Layout
from lineage.records import Record, read_lines

Decision = Literal["approve", "reject"]


class DecisionRecord(TypedDict):
    """A decision as stored in addition to the audit log."""

    gate: int
    decision: Decision
    name: str
    reason: str
    at: str
    audit: audit_log.Anchor
    step: NotRequired[str]
    run: NotRequired[str]
    metric: NotRequired[str]
    via: NotRequired[str]


FOLDER = "approvals"


def append_decision(
    layout: Layout, key: str, gate: int, decision: Decision, *, name: str, reason: str, **facts: Any
) -> DecisionRecord:
    """Record a decision about a gate (its index) of the evaluation with this key, in the audit log first.

    `facts` are the step, the run, the result of the gate and where the decision was made.
    """
    facts_of_decision = {"gate": gate, "decision": decision, "name": name, "reason": reason, **facts}
    entry = audit_log.append(layout, decision, key=key, **facts_of_decision)
    record = parse_decision(entry)
    path = decisions_file(layout, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, encode_decision(record))
        os.fsync(handle)
    finally:
        os.close(handle)
    return record


def parse_decision(entry: audit_log.Entry) -> DecisionRecord:
    """Return the record of a decision from its entry in the audit log."""
    facts = {name: value for name, value in entry["facts"].items() if name != "key"}
    at = datetime.fromisoformat(entry["at"]).isoformat(timespec="seconds")
    return cast(DecisionRecord, {**facts, "at": at, "audit": audit_log.anchor_of(entry)})


def encode_decision(record: DecisionRecord) -> bytes:
    """Return a decision as a JSON line."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def read_decisions(layout: Layout, key: str) -> list[DecisionRecord]:
    """Return every decision about the gates of an evaluation, oldest first."""
    return cast(list[DecisionRecord], read_lines(decisions_file(layout, key)))


def read_artifact_decisions(record: Record) -> list[DecisionRecord]:
    """Return every decision about an artifact's gates, from its record."""
    state = Path(record["folder"]).parents[1]
    return cast(list[DecisionRecord], read_lines(state / FOLDER / f"{record['key']}.jsonl"))


def latest_decision(layout: Layout, key: str, gate: int) -> DecisionRecord | None:
    """Return the latest decision about a gate, or None."""
    return next((record for record in reversed(read_decisions(layout, key)) if record["gate"] == gate), None)


def describe_decision(record: DecisionRecord) -> str:
    """Return a decision as a sentence."""
    what = "approved" if record["decision"] == "approve" else "rejected"
    return f"{what} by {record['name']} at {record['at']}: {record['reason']}"


def decisions_file(layout: Layout, key: str) -> Path:
    """Return the file of the decisions about an evaluation."""
    return layout.state / FOLDER / f"{key}.jsonl"
