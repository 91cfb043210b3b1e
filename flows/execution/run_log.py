"""The folder of a run: its plan, and an append-only log of its events."""

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from flows.execution.events import Event, RecordedStep, Reporter, RetryEvent, RunEvent
from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically
from schemas.errors import PlanError, advise_on_file_error
from schemas.plan import Plan

UNRECORDED = frozenset({"log", "progress"})
"""Types of events that are not recorded, since the artifact holds them: its log and its curves."""


def make_run_name() -> str:
    """Return a name for a run; names sort by time, also within a second: three hex digits of it, then three random."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 16**3 // 10**6:03x}{secrets.randbelow(16**3):03x}"


class RunLog:
    """A reporter that writes events to the run's folder and passes them on to other reporters."""

    def __init__(self, layout: Layout, run: str, *others: Reporter | None):
        self.file = layout.run(run) / "events.jsonl"
        self.others = [other for other in others if other is not None]
        self.lock = threading.Lock()

    def report(self, event: Event) -> None:
        """Record an event with the time (seconds since the epoch), and pass it on."""
        if event["type"] not in UNRECORDED:
            append_event(self.file, {"time": time.time(), **event})
        with self.lock:
            for other in self.others:
                other.report(event)


def append_event(file: Path, event: Mapping[str, object]) -> None:
    """Append an event as one line in one write, so that lines of several processes never mix."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, (json.dumps(event) + "\n").encode())
    finally:
        os.close(handle)


def write_plan(layout: Layout, run: str, plan: Plan) -> None:
    """Write the plan of a run, from which it can be resumed. Raise PlanError if the state folder cannot be written."""
    try:
        layout.make_state()
        write_text_atomically(layout.run(run) / "plan.json", plan.model_dump_json(indent=1))
    except OSError as error:
        advice = advise_on_file_error(error) or "set POSTTRAIN_ROOT to a folder that can be written"
        raise PlanError(f"the state folder {layout.state} cannot be written: {error.strerror}; {advice}") from error


def read_plan(layout: Layout, run: str) -> Plan:
    """Return the plan of a run. Raise PlanError if there is no such run."""
    file = layout.run(run) / "plan.json"
    if not file.is_file():
        raise PlanError(f"no run {run!r} in {layout.state / 'runs'}")
    return Plan.model_validate_json(file.read_bytes())


def list_runs(layout: Layout) -> list[str]:
    """Return the names of all runs with a plan, latest first."""
    folder = layout.state / "runs"
    return sorted((p.parent.name for p in folder.glob("*/plan.json")), reverse=True)


def read_events(layout: Layout, run: str) -> Iterator[RecordedStep | RetryEvent | RunEvent]:
    """Yield the recorded events of a run; skip a line that a killed process left unfinished."""
    file = layout.run(run) / "events.jsonl"
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def read_promotion(layout: Layout, run: str) -> str | None:
    """Return what became of the promotion after a run, or after its latest continuation; None if it tried none."""
    texts = [str(event.get("text")) for event in read_events(layout, run) if event["type"] == "promotion"]
    return texts[-1] if texts else None


def read_step_events(layout: Layout, run: str) -> dict[str, RecordedStep]:
    """Return the last event of every step of a run, by step."""
    return {event["step"]: event for event in read_events(layout, run) if event["type"] == "step"}
