"""What the audit log says of runs, artifacts and decisions, held against what lies there now."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage.auditlog import Entry
from lineage.layout import Layout
from lineage.records import read_lines

DECISIONS = frozenset({"approve", "reject"})


@dataclass
class AuditCheck:
    """What reading the whole log found."""

    problems: list[str] = field(default_factory=list)
    """One line per thing that is not as it was written: `path:line: what`."""
    notes: list[str] = field(default_factory=list)
    """What is no tampering: writes that were cut off, artifacts that somebody removed."""
    hashes: dict[int, str] = field(default_factory=dict)
    """Hash of each entry by its number."""
    published: dict[str, Entry] = field(default_factory=dict)
    """The latest entry of each published artifact by its key."""
    removed: dict[str, int] = field(default_factory=dict)
    """Number of the latest entry that removed an artifact, by its key."""
    runs: dict[str, dict[str, Entry]] = field(default_factory=dict)
    """The latest start and end of each run: {run: {action: entry}}."""
    decisions: dict[int, Entry] = field(default_factory=dict)
    """What people decided about gates, by number."""

    def remember(self, entry: Entry) -> None:
        """Take in an entry that stands in its place."""
        self.hashes[entry["number"]] = entry["hash"]
        facts = entry["facts"] if isinstance(entry["facts"], dict) else {}
        if entry["action"] == "artifact published":
            self.published[str(facts.get("key"))] = entry
        elif entry["action"] in ("run started", "run ended"):
            self.runs.setdefault(str(facts.get("run")), {})[entry["action"]] = entry
        elif entry["action"] in DECISIONS:
            self.decisions[entry["number"]] = entry
        elif entry["action"] == "gc":
            self.removed |= dict.fromkeys(facts.get("artifacts", []), entry["number"])


def claim_problems(layout: Layout, found: AuditCheck) -> Iterator[str]:
    """Plans, events and decisions that are not those that the log saw."""
    for run, said in found.runs.items():
        yield from _run_problems(layout, run, said)
    yield from _decision_problems(layout, found)


def unexplained(layout: Layout, found: AuditCheck) -> Iterator[str]:
    """Artifacts and decisions that the log knows, that are gone, and that no entry removed."""
    for key, entry in found.published.items():
        folder = layout.artifact(str(entry["facts"].get("kind")), key)
        if found.removed.get(key, 0) < entry["number"] and not folder.exists():
            yield f"{folder}: published by entry {entry['number']} of the audit log; gone, and no entry removed it"
    there = {(line.get("audit") or {}).get("number") for _, line in _decided_here(layout)}
    for number, entry in found.decisions.items():  # also after a kill between the entry and the record
        if number not in there:
            yield f"{layout.state / 'approvals'}: the decision of entry {number} ({entry['action']}) is not there"


def _run_problems(layout: Layout, run: str, said: dict[str, Entry]) -> Iterator[str]:
    plan, events = layout.run(run) / "plan.json", layout.run(run) / "events.jsonl"
    started, ended = said.get("run started"), said.get("run ended")
    if started and plan.is_file() and started["facts"].get("plan") not in (None, _sha256(plan.read_bytes())):
        yield f"{plan}: is not the plan that entry {started['number']} of the audit log saw"
    seen = ended["facts"].get("events") if ended else None
    if ended and seen and events.is_file():
        text = events.read_bytes()[: seen["bytes"]]
        if (len(text), _sha256(text)) != (seen["bytes"], seen["sha256"]):
            yield f"{events}: is not the record of events that entry {ended['number']} of the audit log saw"


def _decision_problems(layout: Layout, found: AuditCheck) -> Iterator[str]:
    """Decisions beside the log that it does not know, or knows otherwise."""
    for path, line in _decided_here(layout):
        entry = found.decisions.get((line.get("audit") or {}).get("number"))
        if entry is None or _decided(entry["facts"], entry["action"]) != _decided({**line, "key": path.stem}):
            yield f"{path}: {line.get('decision')} by {line.get('name')} is not what the audit log says"


def _decided_here(layout: Layout) -> list[tuple[Path, dict[str, Any]]]:
    return [(path, line) for path in sorted(layout.state.glob("approvals/*.jsonl")) for line in read_lines(path)]


def _decided(facts: dict[str, Any], decision: str | None = None) -> tuple[Any, ...]:
    names = ("key", "gate", "name", "reason")
    return (decision or facts.get("decision"), *(facts.get(name) for name in names))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
