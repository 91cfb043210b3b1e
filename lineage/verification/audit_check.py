"""Checks that the audit log is unaltered, and that runs and artifacts still match it."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lineage.artifacts.signature import SIGNATURE, Predicate, read_statement
from lineage.audit.chain import find_signature_problem
from lineage.audit.claims import AuditCheck, check_decisions, find_unexplained_losses
from lineage.audit.log import FIRST, Entry, head_file, is_cut_off, log_file, parse_entry, read_head
from lineage.audit.run_checks import check_run
from lineage.keys import Ed25519PublicKey
from lineage.layout import Layout
from lineage.registry.champions import check_registry
from lineage.state_files import Unreadable, is_folder, read_json_lines, read_regular
from lineage.verification.key_check import read_keys
from schemas.errors import PlanError


def check_audit(layout: Layout) -> AuditCheck:
    """Check the log and everything that it mentions; raise PlanError if the named signing key is invalid."""
    audit = check_log(layout)
    audit.problems += read_keys(layout)[1]
    audit.problems += check_decisions(layout, audit)
    for run, entries in sorted(audit.runs.items()):
        problems, notes = check_run(layout, run, entries)
        audit.problems += problems
        audit.notes += notes
    try:
        audit.problems += check_registry(layout)
    except PlanError as error:
        audit.problems.append(f"what MLflow says cannot be compared with the log: {error}")
    audit.notes += find_unexplained_losses(layout, audit)
    return audit


def check_log(layout: Layout) -> AuditCheck:
    """Check the log alone, and the anchors that other records keep of it."""
    audit = AuditCheck()
    keys, _ = read_keys(layout)
    _read_log(layout, keys, audit)
    audit.problems += _check_anchors(layout, audit)
    return audit


def _read_log(layout: Layout, keys: dict[str, Ed25519PublicKey], audit: AuditCheck) -> None:
    path = log_file(layout)
    try:
        lines = read_regular(path).split(b"\n")
    except Unreadable as error:
        lines = [b""]
        if os.path.lexists(path):
            audit.problems.append(f"{path}: {error}")
    last: Entry | None = None
    invalid: list[bytes] = []
    for number, line in enumerate(lines, 1):
        entry = parse_entry(line)
        if entry is None:
            invalid.append(line)
            continue
        where = f"{path}:{number}"
        is_missing = _check_strangers(f"{path}:{number - len(invalid)}", invalid, entry, audit)
        entry_problems = list(_check_entry(entry, keys))
        problems = entry_problems or ([] if is_missing else list(_check_order(entry, last)))
        audit.problems += [f"{where}: {what}" for what in problems]
        invalid = []
        if last is None or entry["number"] > last["number"]:
            last = entry
            audit.remember(entry, believed=not entry_problems)
    _check_end(f"{path}:{len(lines) - len(invalid) + 1}", b"\n".join(invalid), audit)


def _check_strangers(where: str, lines: list[bytes], entry: Entry, audit: AuditCheck) -> bool:
    """Report lines before an entry that are not entries; return whether they replace a missing entry."""
    if entry["action"] == "repaired":
        facts, text = entry["facts"], b"\n".join(lines)
        if facts.get("sha256") not in {hashlib.sha256(t).hexdigest() for t in (text, text + b"\n")}:
            audit.problems.append(f"{where}: the bytes that entry {entry['number']} says it found are not there")
        elif facts.get("cut_off"):
            audit.notes.append(f"{where}: a write was cut off; entry {entry['number']} of {entry['at']} found it")
        else:
            audit.problems.append(f"{where}: {facts.get('bytes')} bytes that posttrain did not write")
        return False
    if lines:
        audit.problems.append(f"{where}: no entry any more, though entry {entry['number']} follows")
    return bool(lines)


def _check_entry(entry: Entry, keys: dict[str, Ed25519PublicKey]) -> Iterator[str]:
    """Yield what is wrong with an entry itself."""
    if problem := find_signature_problem(entry, keys):
        yield f"entry {entry['number']} ({entry['action']}) {problem}"


def _check_order(entry: Entry, last: Entry | None) -> Iterator[str]:
    """Yield what is wrong between an entry and the one before."""
    number, expected = entry["number"], last["number"] + 1 if last else 1
    if number > expected:
        missing = f"entry {expected} is" if number == expected + 1 else f"entries {expected} to {number - 1} are"
        yield f"{missing} missing before entry {number}"
    elif number < expected:
        yield f"entry {number} ({entry['action']}) stands after entry {expected - 1}: moved or inserted"
    elif entry["previous"] != (last["hash"] if last else FIRST):
        yield f"entry {number} was written after another entry than the one before it: one of the two was replaced"


def _check_end(where: str, rest: bytes, audit: AuditCheck) -> None:
    if rest.strip(b"\n") and is_cut_off(rest):
        audit.notes.append(f"{where}: the last write was cut off; the next entry will say so")
    elif rest.strip(b"\n"):
        audit.problems.append(f"{where}: no entry")


def _check_anchors(layout: Layout, audit: AuditCheck) -> list[str]:
    """Return anchors of entries that the log lacks, each once."""
    problems: dict[str, str] = {}
    if os.path.lexists(head_file(layout)) and read_head(layout) is None:
        problems["head"] = f"{head_file(layout)}: does not say which entry is the latest"
    latest = max(audit.hashes, default=0)
    for source, number, digest in sorted(_read_anchors(layout, audit), key=lambda a: (-a[1], a[0])):
        if number > latest:
            problems.setdefault("end", f"{log_file(layout)}: ends at entry {latest}, but {source} saw entry {number}")
        elif audit.hashes.get(number, digest) != digest:
            what = f"{log_file(layout)}: entry {number} is another than the one that {source} saw"
            problems.setdefault(f"{number}", what)
    return list(problems.values())


def _read_anchors(layout: Layout, audit: AuditCheck) -> Iterator[tuple[str, int, str]]:
    """Yield (source, number, hash) of all anchors: head file, ends of runs, decisions, signatures of artifacts."""
    yield from _parse_anchor(head_file(layout), read_head(layout))
    for path in (*layout.state.glob("runs/*/events.jsonl"), *layout.state.glob("approvals/*.jsonl")):
        for event in read_json_lines(path):
            yield from _parse_anchor(path, event.get("audit"))
    for folder in layout.state.glob("artifacts/*"):
        statement = read_statement(folder)
        if statement and _was_made_here(layout, statement["predicate"], audit):
            yield from _parse_anchor(folder / SIGNATURE, statement["predicate"]["audit"])


def _was_made_here(layout: Layout, predicate: Predicate, audit: AuditCheck) -> bool:
    """Return whether an artifact was made in this checkout: a pulled one has an anchor of another log."""
    run, entry = str(predicate.get("run")), audit.published.get(str(predicate.get("key")))
    return is_folder(layout.run(run)) or (entry is not None and entry["facts"].get("run") == run)


def _parse_anchor(source: Path, anchor: Any) -> Iterator[tuple[str, int, str]]:
    if isinstance(anchor, dict) and type(anchor.get("number")) is int and isinstance(anchor.get("hash"), str):
        yield str(source), anchor["number"], anchor["hash"]
