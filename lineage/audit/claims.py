"""Compares the audit log with the artifacts and decisions on disk."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage.audit.chain import MOVES
from lineage.audit.log import Entry
from lineage.audit.moves import OTHERS
from lineage.layout import Layout
from lineage.state_files import Unreadable, is_folder, parse_json_lines, read_json_lines, read_regular
from schemas.base import JsonObject

DECISIONS = frozenset({"approve", "reject"})
MOVING = MOVES | {OTHERS}
OF_RUNS = frozenset({"run started", "run ended", "report written"})


@dataclass
class AuditCheck:
    """The result of reading the whole log."""

    problems: list[str] = field(default_factory=list)
    """One line per record that differs from what was written: `path:line: problem`."""
    notes: list[str] = field(default_factory=list)
    """Findings that are no tampering: truncated writes, artifacts that were removed by hand."""
    hashes: dict[int, str] = field(default_factory=dict)
    """Hash of each entry by its number."""
    published: dict[str, Entry] = field(default_factory=dict)
    """The latest entry of each published artifact by its key."""
    removed: dict[str, int] = field(default_factory=dict)
    """Number of the latest entry that removed an artifact, by its key."""
    busy: set[str] = field(default_factory=set)
    """Runs that had at least one step to execute when they started."""
    runs: dict[str, dict[str, Entry]] = field(default_factory=dict)
    """The latest start, end and report of each run: {run: {action: entry}}."""
    decisions: dict[int, Entry] = field(default_factory=dict)
    """Decisions about gates, by the number of their entry."""
    moves: list[Entry] = field(default_factory=list)
    """Entries that move a champion, oldest first."""

    def remember(self, entry: Entry, *, believed: bool = True) -> None:
        """Add the hash of an entry, and its content only if it is `believed`."""
        self.hashes[entry["number"]] = entry["hash"]
        facts, action = entry["facts"], entry["action"]
        if not believed:
            return
        if action == "artifact published":
            self.published[str(facts.get("key"))] = entry
        elif action in OF_RUNS:
            self.runs.setdefault(str(facts.get("run")), {})[action] = entry
            if action == "run started" and facts.get("hits") != facts.get("steps"):
                self.busy.add(str(facts.get("run")))
        elif action in MOVING:
            self.moves.append(entry)
        elif action in DECISIONS:
            self.decisions[entry["number"]] = entry
        elif action == "gc" and isinstance(facts.get("artifacts"), list):
            for key in facts["artifacts"]:
                self.removed[str(key)] = entry["number"]


def check_decisions(layout: Layout, audit: AuditCheck) -> Iterator[str]:
    """Yield decisions on disk that differ from the log, and decisions of the log that are missing on disk."""
    decided: list[tuple[Path, JsonObject]] = []
    for path in sorted(layout.state.glob("approvals/*")):
        if path.suffix != ".jsonl":
            continue
        yield from _check_lines(path)
        decided += [(path, line) for line in read_json_lines(path)]
    for path, line in decided:
        entry = audit.decisions.get(_entry_number(line))
        if entry is None or _decision_identity(entry["facts"], entry["action"]) != _decision_identity(
            {**line, "key": path.stem}
        ):
            yield f"{path}: {line.get('decision')} by {line.get('name')} is not what the audit log says"
    yield from _check_order(decided)
    recorded = {_entry_number(line) for _, line in decided}
    for number, entry in audit.decisions.items():  # may also be caused by a kill between the entry and the record
        if number not in recorded:
            file = layout.state / "approvals" / f"{entry['facts'].get('key')}.jsonl"
            yield (
                f"{file}: the decision of entry {number} ({entry['action']}) is not there; "
                "write it again from the log: posttrain lineage --verify --rebuild"
            )


def _check_order(decided: list[tuple[Path, JsonObject]]) -> Iterator[str]:
    """Yield files whose decisions about a gate are not in the order of the log: the last decision is the valid one."""
    orders: dict[Path, dict[str, list[int]]] = {}
    for path, line in decided:
        orders.setdefault(path, {}).setdefault(str(line.get("gate")), []).append(_entry_number(line))
    for path, gates in orders.items():
        if any(numbers != sorted(set(numbers)) for numbers in gates.values()):
            yield f"{path}: its decisions are not in the order of the audit log"


def find_unexplained_losses(layout: Layout, audit: AuditCheck) -> Iterator[str]:
    """Yield artifacts that the log says were published, that are missing, and that no entry removed."""
    for key, entry in audit.published.items():
        folder = layout.artifact(str(entry["facts"].get("kind")), key)
        if audit.removed.get(key, 0) < entry["number"] and not is_folder(folder):
            yield f"{folder}: published by entry {entry['number']} of the audit log; gone, and no entry removed it"


def _check_lines(path: Path) -> Iterator[str]:
    try:
        lines = parse_json_lines(read_regular(path))
    except Unreadable as error:
        yield f"{path}: {error}"
        return
    if lines.garbage or lines.cut_off:
        at = f":{lines.garbage[0][0]}" if lines.garbage else ""
        yield f"{path}{at}: no decision"


def _entry_number(line: JsonObject) -> int:
    """Return the number of the log's entry that a decision names, or 0."""
    audit = line.get("audit")
    number = audit.get("number") if isinstance(audit, dict) else None
    return number if type(number) is int else 0


def _decision_identity(facts: JsonObject, decision: str | None = None) -> tuple[Any, ...]:
    names = ("key", "gate", "name", "reason")
    return (decision or facts.get("decision"), *(facts.get(name) for name in names))
