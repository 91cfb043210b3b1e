"""Evidence of other checkouts, which comes with the models that are pulled: approvals and moves of champions."""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NotRequired, TypedDict

from lineage.audit.approvals import describe_decision, parse_decision
from lineage.audit.chain import find_signature_problem
from lineage.audit.log import Entry, parse_entry, read_entries
from lineage.audit.moves import Move, parse_move, registered_model_name
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from lineage.records import Record
from schemas.atomic_write import atomic_file

FOLDER = "evidence"
DECISIONS = ("approve", "reject")


class Claim(TypedDict):
    """What the log of another checkout says of an artifact."""

    action: str
    at: str
    who: str
    text: str
    problem: NotRequired[str]
    """Why the entry proves nothing here; absent if a trusted key signed it."""


def adopt_evidence(layout: Layout, key: str, content: bytes) -> None:
    """Keep the file of evidence that a remote has for an artifact."""
    with atomic_file(layout.make_state() / FOLDER / f"{key}.json") as fresh:
        fresh.write_bytes(content)


def read_pulled_entries(layout: Layout) -> list[Entry]:
    """Return the entries of other logs that came with pulled models; those of the own log are left out."""
    files = sorted((layout.state / FOLDER).glob("*.json"))
    if not files:
        return []
    own = {entry["hash"] for entry in read_entries(layout)}
    found = {entry["hash"]: entry for file in files for entry in _read_file(file, file.stat().st_mtime_ns)}
    return [entry for name, entry in found.items() if name not in own]


def read_claims(record: Record) -> list[Claim]:
    """Return what logs of other checkouts say of an artifact: decisions about its gates, moves of it as a champion."""
    layout = Layout(Path(record["folder"]).parents[2])
    entries = [entry for entry in read_pulled_entries(layout) if entry["facts"].get("key") == record["key"]]
    keys = load_trusted_keys(layout) if entries else {}
    claims = []
    for entry in entries:
        if (text := _describe(entry)) is not None:
            claim = Claim(action=entry["action"], at=entry["at"], who=entry["who"], text=text)
            if problem := find_signature_problem(entry, keys):
                claim["problem"] = problem
            claims.append(claim)
    return claims


def describe_claims(record: Record) -> Iterator[str]:
    """Yield what logs of other checkouts say of an artifact, and whether a trusted key signed it."""
    for claim in read_claims(record):
        how = f"not proven: its entry {claim['problem']}" if "problem" in claim else "signed by a trusted key"
        yield f"{claim['text']} (log of another checkout, {how})"


def find_move(entry: Entry, name: str) -> Move | None:
    """Return the move of a registered model that an entry describes, or None."""
    move = parse_move(entry)
    return move if move is not None and registered_model_name(entry) == name else None


def _describe(entry: Entry) -> str | None:
    if entry["action"] in DECISIONS and {"name", "reason", "gate", "decision"} <= entry["facts"].keys():
        return f"gate on {entry['facts'].get('metric')} {describe_decision(parse_decision(entry))}"
    move = parse_move(entry)
    if move is None:
        return None
    return f"{move.action}: version {move.version} of {registered_model_name(entry)} at {move.when}, by {move.who}"


@lru_cache(maxsize=64)
def _read_file(file: Path, stamp: int) -> tuple[Entry, ...]:
    """Return the valid entries in a file of evidence; `stamp` is its time of change."""
    try:
        written = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return ()
    audit = written.get("audit") if isinstance(written, dict) else None
    lines = [json.dumps(entry).encode() for entry in audit] if isinstance(audit, list) else []
    return tuple(entry for line in lines if (entry := parse_entry(line)) is not None)
