"""Compares the files of a run's folder with the audit log."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from lineage.audit.log import Entry
from lineage.layout import Layout
from lineage.state_files import Lines, Unreadable, is_folder, parse_json_lines, read_regular, sha256_of

RECORDS = ("cost.json",)
"""Files of a run, in addition to its events, whose digests are in the entry at its end."""
PLAN, EVENTS, REPORT = "plan.json", "events.jsonl", "report.html"


class FileState(TypedDict):
    """Size and digest of a file, as recorded in an entry of the log."""

    bytes: int
    sha256: str


def describe_file(path: Path) -> FileState:
    """Return the size and sha256 of a file, as an entry of the log records them."""
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": sha256_of(content)}


def describe_records(folder: Path) -> dict[str, FileState]:
    """Return the size and sha256 of each file in `RECORDS` that a run has written."""
    return {name: describe_file(folder / name) for name in RECORDS if (folder / name).is_file()}


def check_run(layout: Layout, run: str, entries: dict[str, Entry]) -> tuple[list[str], list[str]]:
    """Return problems and notes about a run, from its latest entries by action."""
    folder = layout.run(run)
    if not is_folder(folder):
        latest = max(entries.values(), key=lambda entry: entry["number"])
        return [f"{folder}: missing, though entry {latest['number']} of the audit log saw this run"], []
    problems, notes = _check_events(folder / EVENTS, entries)
    started, ended, reported = (entries.get(action) for action in ("run started", "run ended", "report written"))
    if started and (plan := started["facts"].get("plan")) is not None:
        problems += _compare_file(folder / PLAN, {"sha256": plan}, started, "the plan")
    if ended and (started is None or started["number"] < ended["number"]):  # else it continues, or was killed since
        records = ended["facts"].get("records")
        for name, recorded in sorted(records.items()) if isinstance(records, dict) else ():
            problems += _compare_file(folder / str(name), recorded, ended, "the record")
    if reported:
        again = f"; write it again: posttrain report {run}"
        recorded = reported["facts"].get("report")
        problems += [f"{line}{again}" for line in _compare_file(folder / REPORT, recorded, reported, "the report")]
    return problems, notes


def _compare_file(path: Path, recorded: Any, entry: Entry, what: str) -> Iterator[str]:
    """Yield a line if a file is missing or differs from the one that an entry recorded."""
    try:
        content = read_regular(path)
    except Unreadable as error:
        yield f"{path}: {error}; entry {entry['number']} of the audit log saw it"
        return
    if not isinstance(recorded, dict) or recorded.get("sha256") != sha256_of(content):
        yield f"{path}: is not {what} that entry {entry['number']} of the audit log saw"


def _check_events(path: Path, entries: dict[str, Entry]) -> tuple[list[str], list[str]]:
    """Return differences between the recorded events and the file, and lines that are no events.

    If the bytes that the log recorded are unchanged, garbage among them comes from a kill or a full disk.
    """
    witnesses = [entry for action in ("run ended", "report written") if (entry := entries.get(action))]
    try:
        content = read_regular(path)
    except Unreadable as error:
        needed = f"; entry {witnesses[0]['number']} of the audit log saw it" if witnesses else ""
        return ([f"{path}: {error}{needed}"] if witnesses or os.path.lexists(path) else []), []
    problems, covered = [], 0
    for entry in witnesses:
        recorded = entry["facts"].get("events")
        if recorded is None:
            continue
        size = recorded.get("bytes") if isinstance(recorded, dict) else None
        if type(size) is not int or size > len(content) or sha256_of(content[:size]) != recorded.get("sha256"):
            problems.append(f"{path}: is not the record of events that entry {entry['number']} of the audit log saw")
        else:
            covered = max(covered, size)
    more, notes = _describe_garbage(path, parse_json_lines(content), covered)
    return problems + more, notes


def _describe_garbage(path: Path, lines: Lines, covered: int) -> tuple[list[str], list[str]]:
    strange = [number for number, start in lines.garbage if start >= covered]
    covered_lines = [number for number, start in lines.garbage if start < covered]
    problems = [f"{path}:{strange[0]}: no event{_count_more(strange)}"] if strange else []
    notes = [f"{path}:{covered_lines[0]}: a write was cut off{_count_more(covered_lines)}"] if covered_lines else []
    if lines.cut_off:
        notes.append(f"{path}: its last write was cut off")
    return problems, notes


def _count_more(numbers: list[int]) -> str:
    return f", and {len(numbers) - 1} more lines" if len(numbers) > 1 else ""
