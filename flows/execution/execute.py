"""Execute a plan in plain Python: which steps start, are cached, skipped, blocked or retried.

Executors run the steps (`flows.steps.in_process`, `flows.steps.ray_workers`); reporters show what happens.
"""

import operator
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from flows.execution.events import Event, ProgressEvent, Reporter, StepEvent
from flows.execution.gates import judge_gates
from flows.execution.ledger import Consumption, Ledger
from flows.execution.states import FINISHED, StepState
from flows.planning.estimate import Forecast
from flows.processes.file_tail import FileTail
from flows.processes.secret_values import find_secrets, redact
from flows.steps.artifacts import RestoredFiles
from flows.steps.step_spec import MadeInput, StepSpec, TaskReport
from flows.steps.task_run import progress_path
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.manifest import Manifest
from schemas.plan import Plan, Step, Until

COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq}
POLL = 0.1
"""Seconds between looks at a running step."""


class Handle(Protocol):
    """A submitted step."""

    def wait(self, seconds: float) -> bool:
        """Return whether the step has ended, after waiting at most that long."""
        ...

    def result(self) -> Manifest:
        """Return the manifest of the ended step. Raise StepError if it failed."""
        ...

    def kill(self) -> None:
        """End the step now, with everything it started."""


class Executor(Protocol):
    """Runs steps somewhere."""

    def check(self, steps: list[Step]) -> None:
        """Raise PlanError if a step can never run here."""

    def submit(self, spec: StepSpec) -> Handle:
        """Start a step, or queue it until its resources are free."""
        ...

    def close(self) -> None:
        """Release everything."""


class _Killed(StepError):
    """A step was ended from here: by its time limit, the budget or a stop."""


class Execution:
    """One run of a plan; `perform` does one step whose needs have ended and may be called from several threads."""

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        executor: Executor | None,
        reporter: Reporter,
        run: str,
        stop: threading.Event | None = None,
        ledger: Ledger | None = None,
        forecast: Forecast | None = None,
    ):
        self.plan, self.layout, self.executor, self.reporter, self.run = plan, layout, executor, reporter, run
        self.ledger = ledger or Ledger(plan, layout, run, {})
        self.forecast = forecast or Forecast(plan, layout)
        self.store = Store(layout)
        self.states: dict[str, StepState] = {}
        self.stop = stop or threading.Event()
        self.restored: RestoredFiles = {}
        """Files of artifacts that were restored before the run, by step."""
        self.ask_people: Callable[[Step, StepState], StepState] = lambda step, state: state
        """Waits for approvals of a step's gates; by default the run continues without the steps that depend on it."""
        self.folders = tuple(dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root)))

    def perform(self, step: Step, on_line: Callable[[str], None] = lambda line: None) -> StepState:
        """Do a step unless its artifact exists or it is skipped or blocked; return its state, also when it fails."""
        started = time.monotonic()
        try:
            state = self._settle(step) or self._find_artifact(step) or self._try(step, on_line)
        except StepError as error:
            state = StepState(step.name, "failed", _message_of(step, error), seconds=time.monotonic() - started)
        if state.manifest is not None:
            state = replace(state, gates=judge_gates(step, state.manifest, self.layout))
        if state.waits:
            state = self.ask_people(step, state)
        self.states[step.name] = state
        self.reporter.report(state.as_event())
        return state

    def _settle(self, step: Step) -> StepState | None:
        """Return the state of a step that will not run: its loop ended, or a step before it failed; else None."""
        if self.stop.is_set():
            return StepState(step.name, "cancelled", "the run was stopped")
        for name in step.needs:
            before = self.states[name]
            if before.stops:
                return StepState(step.name, "blocked", before.stop_reason)
        if (reason := self._not_on_branch(step)) is not None:
            return StepState(step.name, "skipped", reason)
        for until in step.unless:
            if self.states[until.step].state == "skipped" or self._is_met(until):
                return StepState(step.name, "skipped", f"{until.step}: {until.metric} {until.op} {until.value}")
        if any(step_input.steps and self._first_finished(step_input.steps) is None for step_input in step.inputs):
            return StepState(step.name, "skipped", "what it reads was skipped")
        return None

    def _not_on_branch(self, step: Step) -> str | None:
        """Return why gates that branch keep a step from running; None when they do not."""
        chosen = {b.step for b in step.branch_of if b.gate in self.states[b.step].branches}
        if step.branch_of and not chosen:
            return f"only if a gate of {', '.join(dict.fromkeys(b.step for b in step.branch_of))} fails"
        barred = [name for name in step.needs if self.states[name].branches and name not in chosen]
        return f"a gate of {barred[0]} failed: its branch runs instead" if barred else None

    def _is_met(self, until: Until) -> bool:
        manifest = self.states[until.step].manifest
        value = manifest.metrics.get(until.metric) if manifest else None
        if not isinstance(value, int | float):
            names = ", ".join(manifest.metrics) if manifest else ""
            raise StepError(f"until: {until.step} has no number `{until.metric}`; it has: {names or 'none'}")
        return COMPARE[until.op](value, until.value)

    def _first_finished(self, candidates: tuple[str, ...]) -> Manifest | None:
        states = (self.states[name] for name in candidates)
        return next((state.manifest for state in states if state.state in FINISHED), None)

    def _find_artifact(self, step: Step) -> StepState | None:
        manifest = self.store.find(step.kind, step.key)
        if manifest is None:
            return None
        files = self.restored.get(step.name)
        restored = f"; restored from DVC's cache: {', '.join(files)}" if files else ""
        return StepState(step.name, "cached", f"made by run {manifest.run}{restored}", manifest)

    def _try(self, step: Step, on_line: Callable[[str], None]) -> StepState:
        started, error = time.monotonic(), ""
        for attempt in range(step.retries + 1):
            if exceeded := self.ledger.find_stop_reason():
                error = error or exceeded
                break
            if error:
                self.reporter.report({"type": "retry", "step": step.name, "attempt": attempt + 1, "reason": error})
            try:
                manifest = self._run_once(step, on_line)
            except StepError as failure:
                error = redact(_message_of(step, failure), find_secrets(step.settings))
                if self.stop.is_set():
                    reason = "stopped; `posttrain resume` continues from its checkpoints"
                    return StepState(step.name, "cancelled", reason)
                continue
            if manifest.run != self.run:
                reason = f"made by run {manifest.run} during this run"
                return StepState(step.name, "cached", reason, manifest, time.monotonic() - started)
            return StepState(step.name, "done", "", manifest, time.monotonic() - started)
        return StepState(step.name, "failed", error, seconds=time.monotonic() - started)

    def _run_once(self, step: Step, on_line: Callable[[str], None]) -> Manifest:
        """Run one attempt; watch it until it ends, exceeds its time limit or the run is stopped."""
        if self.executor is None:
            raise StepError(f"{step.name}: its artifact disappeared during the run; run again")
        spec = self._make_spec(step)
        log = FileTail(self.layout.work(step.key) / "step.log", at_end=True)
        progress = FileTail(progress_path(self.layout, step.key, spec.attempt))
        with closing(progress), closing(log):
            handle = self.executor.submit(spec)
            try:
                has_reported = self._watch(step, handle, progress, log, on_line)
                manifest = handle.result()
            except _Killed:
                made = self.store.find(step.kind, step.key)
                if made is None:
                    self.ledger.end(step)
                    raise
                has_reported, manifest = True, made  # it ended before the signal reached it
            except BaseException:
                self.ledger.end(step)
                raise
        made_here = manifest.run == self.run
        earlier = manifest.earlier
        consumption = Consumption(
            manifest.seconds - earlier.seconds,
            manifest.tokens - earlier.tokens,
            manifest.paid - earlier.paid,
            manifest.paid_tokens - earlier.paid_tokens,
        )
        self.ledger.end(step, consumption if made_here else None)
        if not has_reported:  # it ended, and its progress file was removed, before the first look
            self._pass_on(step, {"started": 0})
        return manifest

    def _watch(
        self, step: Step, handle: Handle, progress: FileTail, log: FileTail, on_line: Callable[[str], None]
    ) -> bool:
        """Report how the step goes until it ends; return whether it reported anything."""
        ended, started, has_reported, secret_values = False, None, False, find_secrets(step.settings)
        while not ended:
            ended = handle.wait(POLL)
            for report in progress.events():
                started, has_reported = time.monotonic() if "started" in report else started, True
                self._pass_on(step, report)
            for raw in log.lines(self.layout.artifact(step.kind, step.key) / "step.log" if ended else None):
                line = redact(raw, secret_values)
                on_line(line)
                self.reporter.report({"type": "log", "step": step.name, "line": line})
            late = step.timeout is not None and started is not None and time.monotonic() - started > step.timeout
            exceeded = self.ledger.find_stop_reason()
            if not ended and (late or exceeded or self.stop.is_set()):
                handle.kill()
                reason = f"exceeded its time limit of {step.timeout:g} s" if late else exceeded or "stopped"
                raise _Killed(f"{step.name}: {reason}; its process was killed")
        return has_reported

    def _pass_on(self, step: Step, report: TaskReport) -> None:
        """Count what a task reports as spent, and report the rest as events of the run."""
        event: Event
        if "spent" in report:
            self.ledger.add_tokens(step, int(report["spent"] or 0), report.get("paid"))
            return
        if "started" in report or "waiting" in report:
            if report.get("started"):
                self.ledger.begin(step)
            event = StepEvent(type="step", step=step.name, state="running")
            if "waiting" in report:
                event["reason"] = "another run is doing this step; waiting for it"
        else:
            figures = {name: value for name, value in report.items() if name != "step"}
            progress = {"type": "progress", "step": step.name, "at": report.get("step"), **figures}
            event = cast(ProgressEvent, progress)  # tasks choose the names of their figures
        self.reporter.report(event)

    def _make_spec(self, step: Step) -> StepSpec:
        inputs: dict[str, MadeInput] = {}
        for step_input in step.inputs:
            made = self._first_finished(step_input.steps) if step_input.steps else None
            if made is not None:
                inputs[step_input.port] = MadeInput(made.kind, made.key, str(step_input.output), made.step)
        return StepSpec(
            root=self.layout.root,
            run=self.run,
            recipe=self.plan.recipe,
            folders=self.folders,
            attempt=secrets.token_hex(4),
            step=step,
            inputs=inputs,
        )


def _message_of(step: Step, error: StepError) -> str:
    """Return the message without the step's name, which is shown next to it everywhere."""
    return str(error).removeprefix(f"{step.name}: ")


def execute_plan(execution: Execution) -> dict[str, StepState]:
    """Perform every step that has not ended as soon as its needs have; independent steps run at the same time."""
    waiting = [step for step in execution.plan.steps if step.name not in execution.states]
    names = {step.name for step in waiting}
    running: dict[Future[StepState], Step] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(waiting)), thread_name_prefix="step") as pool:
        try:
            while waiting or running:
                for step in [s for s in waiting if all(n in execution.states for n in s.needs if n in names)]:
                    waiting.remove(step)
                    running[pool.submit(execution.perform, step)] = step
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    running.pop(future)
                    future.result()
        except BaseException:
            execution.stop.set()
            raise
    return execution.states
