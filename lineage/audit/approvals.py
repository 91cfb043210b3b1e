"""What people decided about gates that failed: who, when, why; one JSON line per decision, only ever added.

A decision is about a gate of one evaluation, so it lies under the key of that step: an equal evaluation does not ask
again, and no key is made of decisions. The latest one counts.
"""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from lineage.audit import log as audit_log
from lineage.layout import Layout
from lineage.records import read_lines

Decision = Literal["approve", "reject"]
Record = dict[str, Any]
FOLDER = "approvals"


def record_decision(
    layout: Layout, key: str, gate: int, decision: Decision, *, name: str, reason: str, **facts: Any
) -> Record:
    """Keep a decision about a gate (its index) of the evaluation with this key; the audit log has it first.

    `facts` are the step, the run, what the gate said and where the decision was made.
    """
    told = {"gate": gate, "decision": decision, "name": name, "reason": reason, **facts}
    entry = audit_log.append(layout, decision, key=key, **told)
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


def parse_decision(entry: audit_log.Entry) -> Record:
    """The line that belongs to a decision's entry of the audit log."""
    told = {name: value for name, value in entry["facts"].items() if name != "key"}
    at = datetime.fromisoformat(entry["at"]).isoformat(timespec="seconds")
    return told | {"at": at, "audit": audit_log.anchor_of(entry)}


def encode_decision(record: Record) -> bytes:
    """A decision as its line."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def read_decisions(layout: Layout, key: str) -> list[Record]:
    """Every decision about the gates of an evaluation, oldest first."""
    return read_lines(decisions_file(layout, key))


def read_artifact_decisions(record: Record) -> list[Record]:
    """Every decision about an artifact's gates, from its manifest as plain data with its folder."""
    state = Path(record["folder"]).parents[1]
    return read_lines(state / FOLDER / f"{record['key']}.jsonl")


def latest_decision(layout: Layout, key: str, gate: int) -> Record | None:
    """The decision that counts; None while there is none."""
    return next((record for record in reversed(read_decisions(layout, key)) if record["gate"] == gate), None)


def describe_decision(record: Record) -> str:
    """A decision in words."""
    what = "approved" if record["decision"] == "approve" else "rejected"
    return f"{what} by {record['name']} at {record['at']}: {record['reason']}"


def decisions_file(layout: Layout, key: str) -> Path:
    """Where the decisions about an evaluation lie."""
    return layout.state / FOLDER / f"{key}.jsonl"
