"""The folder of a run: its plan, and an append-only log of what happened, one write per event."""

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically
from schemas.errors import PlanError
from schemas.plan import Plan

UNRECORDED = frozenset({"log", "progress"})
"""Kinds of events that lie in the artifact already (log and curves)."""


def new_run() -> str:
    """A run's name; names sort by time, also within a second: three hex digits of it, then three of chance."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 16**3 // 10**6:03x}{secrets.randbelow(16**3):03x}"


class RunLog:
    """Writes events to the run's folder and hands them on to other reporters."""

    def __init__(self, layout: Layout, run: str, *others: Any):
        self.file = layout.run(run) / "events.jsonl"
        self.others = [o for o in others if o is not None]
        self.lock = threading.Lock()

    def event(self, event: dict[str, Any]) -> None:
        """Record an event with the time (seconds since the epoch), and pass it on."""
        if event["type"] not in UNRECORDED:
            append(self.file, {"time": time.time(), **event})
        with self.lock:
            for other in self.others:
                other.event(event)


def append(file: Path, event: dict[str, Any]) -> None:
    """Add one line in one write: writers in several processes never mix."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, (json.dumps(event) + "\n").encode())
    finally:
        os.close(handle)


def write_plan(layout: Layout, run: str, plan: Plan) -> None:
    """Keep the plan of a run, so that it can be run again as it was planned. Raises PlanError when it cannot."""
    try:
        layout.make_state()
        write_text_atomically(layout.run(run) / "plan.json", plan.model_dump_json(indent=1))
    except OSError as error:
        advice = "give POSTTRAIN_ROOT a folder that can be written"
        raise PlanError(f"the state folder {layout.state} cannot be written: {error.strerror}; {advice}") from error


def read_plan(layout: Layout, run: str) -> Plan:
    """The plan of a run. Raises PlanError when there is no such run."""
    file = layout.run(run) / "plan.json"
    if not file.is_file():
        raise PlanError(f"no run {run!r} in {layout.state / 'runs'}")
    return Plan.model_validate_json(file.read_bytes())


def runs(layout: Layout) -> list[str]:
    """Names of all runs with a plan, latest first."""
    folder = layout.state / "runs"
    return sorted((p.parent.name for p in folder.glob("*/plan.json")), reverse=True)


def events(layout: Layout, run: str) -> Iterator[dict[str, Any]]:
    """What was recorded of a run; a line that a killed process left unfinished is passed over."""
    file = layout.run(run) / "events.jsonl"
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue
