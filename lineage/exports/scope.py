"""The scope of an export: the artifacts of a target with all ancestors, and the events of their runs."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lineage.layout import Layout
from lineage.records import Record, read_lines, read_record
from lineage.tracing.ancestry import trace
from lineage.tracing.target import Target
from schemas.base import JsonObject

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:posttrain")
ENDED = frozenset({"failed", "cancelled"})


@dataclass(frozen=True)
class Scope:
    """Complete manifests, oldest first, and the events of their runs."""

    target: Target
    records: list[Record]
    events: dict[str, list[JsonObject]]
    """Run to its events, oldest first; includes the run that is the target even if it made nothing."""
    planned: dict[str, JsonObject]
    """Steps in the plan of the run that is the target, by name; empty for other targets."""

    @property
    def chosen(self) -> list[Record]:
        """The target's own artifacts."""
        return [record for record in self.records if record["key"] in self.target.keys]

    def made_by(self, run: str) -> "Scope":
        """Return the part of the scope that one run made."""
        records = [record for record in self.records if record["run"] == run]
        return Scope(self.target, records, {run: self.events.get(run, [])}, self.planned)

    def unfinished(self) -> list[JsonObject]:
        """Return the last events of failed or cancelled steps of the run that is the target."""
        if self.target.what != "run":
            return []
        last = {e["step"]: e for e in self.events.get(self.target.word, []) if e["type"] == "step"}
        return [event for event in last.values() if event["state"] in ENDED]


def collect_scope(layout: Layout, word: str) -> Scope:
    """Return a target and everything that it was made from; raise UnknownTarget."""
    lineage = trace(layout, word)
    read = (read_record(node.record["folder"]) for node in lineage.up)
    records = sorted((r for r in read if r is not None), key=lambda r: (r["started"], r["key"]))
    runs = dict.fromkeys(record["run"] for record in records)
    planned: dict[str, JsonObject] = {}
    if lineage.target.what == "run":
        runs[word] = None
        plan = layout.run(word) / "plan.json"
        planned = {step["name"]: step for step in json.loads(plan.read_bytes())["steps"]} if plan.is_file() else {}
    events = {run: read_lines(layout.run(run) / "events.jsonl") for run in sorted(runs)}
    return Scope(lineage.target, records, events, planned)


def stable_id(*words: str) -> str:
    """Return a UUID that depends only on the words."""
    return str(uuid.uuid5(NAMESPACE, json.dumps(words)))


def end_time(record: Record) -> datetime:
    """Return when the step that made an artifact ended."""
    return datetime.fromisoformat(record["started"]) + timedelta(seconds=record["seconds"])


def format_time(seconds: float) -> str:
    """Return a time of the event log (seconds since the epoch) in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def find_tables(record: Record, output: str) -> list[Path]:
    """Return the tables of rows in an output."""
    files = record["outputs"][output]["files"]
    folder = Path(record["folder"], "outputs", output)
    return [folder / file["path"] for file in files if file["path"].endswith(".parquet")]
