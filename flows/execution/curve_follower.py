"""Copies the curves of running steps to the trackers of the recipe (`track:`), beside the run, which never waits."""

import json
import queue
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from flows.execution.events import Event, StepEvent
from flows.execution.results import is_number
from flows.processes.file_tail import FileTail
from lineage.layout import Layout
from lineage.records import read_record
from lineage.tracking.curve_names import make_curve_name
from lineage.tracking.curve_sinks import MODULES, CurveLine, CurveSink
from lineage.tracking.sink_opening import open_sink
from schemas.base import JsonObject
from schemas.plan import Plan, Step
from schemas.stages.union import traits_of
from schemas.trackers import Tracker

END_LIMIT = 60.0
"""Seconds that the trackers have to finish when a run ends."""
CURVES, MARKS = "metrics.jsonl", "tracked.txt"
"""The curves of an artifact; in a run's folder, a line per tracker and step whose record is complete."""


@dataclass
class Followed:
    """The curve of one attempt of a step: the file that it grows in, its last step, and its records in trackers."""

    tail: FileTail
    at: int = 0
    sinks: dict[Tracker, CurveSink] = field(default_factory=dict)


class CurveFollower:
    """A reporter that copies new points from a thread of its own; a tracker that fails is left out from then on."""

    def __init__(self, plan: Plan, layout: Layout, run: str):
        self.plan, self.layout, self.run = plan, layout, run
        self.trackers: list[Tracker] = [tracker for tracker in plan.track if tracker in MODULES]
        self.steps = {step.name: step for step in plan.steps}
        self.followed: dict[str, Followed] = {}
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.errors: dict[Tracker, str] = {}
        self.marks = layout.run(run) / MARKS
        self.thread = threading.Thread(target=self._follow, name="curves", daemon=True)

    def __enter__(self) -> "CurveFollower":
        """Start the thread."""
        if self.trackers:
            self.thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait until all points are copied; print what could not be recorded."""
        if self.thread.is_alive():
            self.events.put(None)
            self.thread.join(END_LIMIT)
        for tracker, why in self.errors.items():
            print(f"track: {tracker} did not record all curves: {why}", file=sys.stderr)

    def report(self, event: Event) -> None:
        """Queue what may have added points or ended a curve."""
        if self.trackers and event["type"] in ("progress", "step", "retry"):
            self.events.put(event)

    def _follow(self) -> None:
        while (event := self.events.get()) is not None:
            if event["type"] == "progress":
                self._copy(self.steps[event["step"]])
            elif event["type"] == "retry":
                self._end(self.steps[event["step"]], failed=True)
            elif event["type"] == "step":
                self._take_state(self.steps[event["step"]], event)
        for name in list(self.followed):
            self._end(self.steps[name], failed=True)

    def _take_state(self, step: Step, event: StepEvent) -> None:
        """Copy the rest of a curve, the step's final numbers after it, and end the record."""
        state = event["state"]
        if state == "cached" and not self._made_here(step):
            return  # its curve is in the record of the run that made it
        if state in ("done", "cached"):
            self._copy(step, self.layout.artifact(step.kind, step.key) / CURVES)
            self._write_final(step, event.get("metrics", {}))
            self._end(step, failed=False)
        elif state in ("failed", "cancelled"):
            self._copy(step)
            self._end(step, failed=True)

    def _write_final(self, step: Step, metrics: Mapping[str, object]) -> None:
        """Add the final numbers of a step to its record, as `final/NAME`, at its last point.

        Steps without a curve have a record only if they score models.
        """
        if not self.followed[step.name].sinks and not traits_of(step.kind).scores_models:
            return
        numbers = {f"final/{name}": float(value) for name, value in metrics.items() if is_number(value)}
        if numbers:
            self._write(step, [CurveLine(self.followed[step.name].at, time.time(), numbers)])

    def _made_here(self, step: Step) -> bool:
        """Return whether this run made an artifact before it was killed, and its record is not complete yet."""
        record = read_record(self.layout.artifact(step.kind, step.key))
        marks = self.marks.read_text().splitlines() if self.marks.is_file() else []
        missing = [tracker for tracker in self.trackers if f"{tracker} {step.name}" not in marks]
        return record is not None and record["run"] == self.run and bool(missing)

    def _copy(self, step: Step, published: Path | None = None) -> None:
        """Copy the lines that an attempt has added; `published` is where its curve is once it has ended."""
        followed = self.followed.get(step.name)
        if followed is None:
            growing = published or next(self.layout.work(step.key).glob(f"tmp-*/{CURVES}"), None)
            if growing is None:
                return
            followed = self.followed[step.name] = Followed(FileTail(growing))
        self._write(step, [_read_line(json.loads(text)) for text in followed.tail.lines(published)])

    def _write(self, step: Step, lines: list[CurveLine]) -> None:
        followed = self.followed.get(step.name)
        if followed is None or not lines:
            return
        followed.at = lines[-1].at
        for tracker in self.trackers:
            if tracker in self.errors:
                continue
            try:
                if tracker not in followed.sinks:
                    followed.sinks[tracker] = open_sink(tracker, self.layout, self.plan.recipe, self.run, step)
                followed.sinks[tracker].write(lines)
            except Exception as error:  # of a tracker: the run goes on
                self.errors[tracker] = f"{type(error).__name__}: {error}"

    def _end(self, step: Step, *, failed: bool) -> None:
        followed = self.followed.pop(step.name, None)
        if followed is None:
            return
        followed.tail.close()
        for tracker, sink in followed.sinks.items():
            try:
                sink.close(failed=failed)
            except Exception as error:
                self.errors.setdefault(tracker, f"{type(error).__name__}: {error}")
            if not failed and tracker not in self.errors:
                with self.marks.open("a") as marks:
                    marks.write(f"{tracker} {step.name}\n")


def _read_line(line: JsonObject) -> CurveLine:
    """Return a line of `metrics.jsonl` with the names that trackers show."""
    values = {
        make_curve_name(metric): float(value)
        for metric, value in line.items()
        if metric not in ("step", "time") and is_number(value)
    }
    return CurveLine(int(line["step"]), float(line["time"]), values)
