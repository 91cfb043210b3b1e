"""Curves of running steps in MLflow, written beside the run, which neither waits for MLflow nor fails with it."""

import json
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from flows.execution.active_runs import is_active
from flows.execution.events import Event
from flows.execution.run_log import append_event
from flows.processes.file_tail import FileTail
from lineage.catalogue.projection import list_curve_points
from lineage.layout import Layout
from lineage.tracking.record import open_tracker
from schemas.plan import Plan, Step

if TYPE_CHECKING:
    from mlflow.entities import Metric

    from lineage.tracking.tracker import Tracker

LOOK = 5.0
"""Seconds between looks at the curves of running steps."""
LONGEST_WAIT = 300.0
"""Seconds: longest wait for the next attempt while MLflow fails; doubled from `LOOK`."""
MOST_POINTS = 1000
"""Points of a step that are written at a time; the rest follows later, at the latest when the run ends."""
CLOSE_LIMIT = 10.0
"""Seconds in which a write that goes on must end when the run ends."""


class FollowedStep:
    """A running attempt of a step: the file of its curves, and its run in MLflow."""

    def __init__(self, folder: Path, child: str):
        self.folder, self.child = folder, child
        self.tail = FileTail(folder / "metrics.jsonl")
        self.pending: list[Metric] = []


class LiveCurves:
    """A reporter that shows the curves of running steps in MLflow, from a thread of its own.

    The end of the run writes everything that is missing (`lineage.tracking.record`), so that nothing depends on this.
    """

    def __init__(self, plan: Plan, layout: Layout, run: str):
        self.plan, self.layout, self.run = plan, layout, run
        self.running: dict[str, tuple[Step, float]] = {}
        """Running steps, with the time of their start in seconds since the epoch."""
        self.ended: dict[str, tuple[str, float]] = {}
        """Steps that ended since the last look, with their state and the time of their end."""
        self.followed: dict[str, FollowedStep] = {}
        self.tracker: Tracker | None = None
        self.parent = ""
        self.errors: set[str] = set()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._follow, name="curves", daemon=True)

    def __enter__(self) -> "LiveCurves":
        """Start the thread."""
        self.thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the thread; MLflow shows as stopped what still runs there."""
        self.close()
        if self.tracker is not None and self.parent and not self.thread.is_alive():
            try:
                self.tracker.end_stopped(self.run)
            except Exception as problem:  # the next run sets it
                self._record(problem)

    def report(self, event: Event) -> None:
        """Take in which steps run."""
        if event["type"] == "step":
            if event["state"] == "running" and "reason" not in event:
                self.running[event["step"]] = self.plan.step(event["step"]), time.time()
            elif event["state"] != "running":
                self.running.pop(event["step"], None)
                self.ended[event["step"]] = event["state"], time.time()

    def close(self) -> None:
        """End the thread, so that the curves can be completed."""
        self.closed.set()
        self.thread.join(CLOSE_LIMIT)
        for followed in self.followed.values():
            followed.tail.close()

    def look(self) -> None:
        """Write the new points of the running steps. Raise what MLflow raises."""
        for name, (step, began) in list(self.running.items()):
            folder = _find_attempt(self.layout, step)
            if folder is None:
                continue
            tracker = self._open()
            followed = self.followed.get(name)
            if followed is None or followed.folder != folder:
                child = tracker.start_child(self.parent, self.run, step, int(began * 1000))
                if followed is not None:
                    followed.tail.close()
                self.followed[name] = followed = FollowedStep(folder, child)
            _write_points(tracker, followed)
        for name, (state, when) in list(self.ended.items()):
            if (followed := self.followed.get(name)) is not None:
                _write_points(self._open(), followed)
                self._open().end_child(followed.child, state, int(when * 1000))
            del self.ended[name]

    def _follow(self) -> None:
        wait = LOOK
        while not self.closed.wait(wait):
            try:
                self.look()
                wait = LOOK
            except Exception as error:  # of databases, drivers, the network: the run goes on
                wait = min(2 * wait, LONGEST_WAIT)
                self._record(error)

    def _open(self) -> "Tracker":
        """Return the tracker, with the MLflow run of this run; runs that were killed are no longer shown as running."""
        if self.tracker is None:
            self.tracker = open_tracker(self.layout, self.plan.recipe)
        if not self.parent:
            for run in self.tracker.list_running() - {self.run}:
                if self.layout.run(run).is_dir() and not is_active(self.layout, run):
                    self.tracker.end_stopped(run)
            self.parent = self.tracker.parent(self.run, self.plan, self.layout)
            self.tracker.resume_parent(self.parent)
        return self.tracker

    def _record(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        if text not in self.errors:
            self.errors.add(text)
            append_event(self.layout.run(self.run) / "events.jsonl", {"type": "live_curves", "error": text})


def _write_points(tracker: "Tracker", followed: FollowedStep) -> None:
    from lineage.tracking.content import make_point_metric  # imports mlflow

    for line in followed.tail.lines():
        followed.pending += [make_point_metric(point) for point in list_curve_points(json.loads(line))]
    batch = followed.pending[:MOST_POINTS]
    if batch:
        tracker.log_points(followed.child, batch)
        del followed.pending[: len(batch)]


def _find_attempt(layout: Layout, step: Step) -> Path | None:
    """Return the folder into which the latest attempt of a step writes; None before it has one, and after its end."""
    folders: dict[Path, float] = {}
    for folder in layout.work(step.key).glob("tmp-*"):
        try:
            folders[folder] = folder.stat().st_mtime
        except FileNotFoundError:
            continue
    return max(folders, key=folders.__getitem__, default=None)
