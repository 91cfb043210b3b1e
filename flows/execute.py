"""A plan carried out, in plain Python: what may start, what is there already, what is skipped, blocked, tried again.

Who runs a step is the executor's business (`flows.steps.inprocess`, `flows.steps.workers`); who else watches is the
reporter's.
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
from typing import Any, Protocol

from flows.gates.gating import judged
from flows.planning.environment import hidden, secrets_of
from flows.planning.estimate import Outlook
from flows.running.budget import Ledger
from flows.running.states import FINISHED, StepState
from flows.running.tail import Tail
from flows.steps.restoring import Restored
from flows.steps.task_run import progress_file
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.manifest import Manifest
from schemas.plan import Plan, Step, Until

COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq}
POLL = 0.1
"""Seconds between looks at a running step."""


class Reporter(Protocol):
    """Hears what happens; called from several threads."""

    def event(self, event: dict[str, Any]) -> None:
        """{"type": "step" | "progress" | "log" | "run", ...}."""


class Handle(Protocol):
    """A submitted step."""

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most that long."""

    def result(self) -> dict[str, Any]:
        """The manifest of the ended step. Raises StepError."""

    def kill(self) -> None:
        """End it now, with everything it started."""


class Executor(Protocol):
    """Runs steps somewhere."""

    def check(self, steps: list[Step]) -> None:
        """Raises PlanError when a step can never run here."""

    def submit(self, spec: dict[str, Any]) -> Handle:
        """Start a step (see `flows.steps.step`), or queue it until its resources are free."""

    def close(self) -> None:
        """Give everything back."""


class Execution:
    """One run of a plan; `perform` does one step whose needs have ended and may be called from several threads."""

    def __init__(self, plan: Plan, layout: Layout, executor: Executor | None, reporter: Reporter, run: str,
                 stop: threading.Event | None = None, ledger: Ledger | None = None,
                 outlook: Outlook | None = None):  # fmt: skip
        self.plan, self.layout, self.executor, self.reporter, self.run = plan, layout, executor, reporter, run
        self.ledger = ledger or Ledger(plan, layout, run, {})
        self.outlook = outlook or Outlook(plan, layout)
        self.store = Store(layout)
        self.states: dict[str, StepState] = {}
        self.stop = stop or threading.Event()
        self.restored: Restored = {}
        """What was put back of artifacts before the run, by step."""
        self.ask_people: Callable[[Step, StepState], StepState] = lambda step, state: state
        """What becomes of a step whose gate waits for a person: by default the run goes on without its dependants."""
        self.folders = [str(f) for f in dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root))]

    def perform(self, step: Step, on_line: Callable[[str], None] = lambda line: None) -> StepState:
        """Do a step, unless it is there, skipped or blocked; never raises for what the step does."""
        begun = time.monotonic()
        try:
            state = self._settled(step) or self._found(step) or self._tried(step, on_line)
        except StepError as error:
            state = StepState(step.name, "failed", _said(step, error), seconds=time.monotonic() - begun)
        if state.manifest is not None:
            state = replace(state, gates=judged(step, state.manifest, self.layout))
        if state.waits:
            state = self.ask_people(step, state)
        self.states[step.name] = state
        self.reporter.event(state.event())
        return state

    def _settled(self, step: Step) -> StepState | None:
        """The state of a step that will not run: its loop ended, or something before it stands in the way."""
        if self.stop.is_set():
            return StepState(step.name, "cancelled", "the run was stopped")
        for name in step.needs:
            before = self.states[name]
            if before.stops:
                what = f"the gate of {name} failed: {before.gate}" if before.gate else f"{name} {before.state}"
                what = f"a gate of {name} waits for approval: {before.waits}" if before.waits else what
                return StepState(step.name, "blocked", what)
        if (elsewhere := self._branched(step)) is not None:
            return StepState(step.name, "skipped", elsewhere)
        for until in step.unless:
            if self.states[until.step].state == "skipped" or self._holds(until):
                return StepState(step.name, "skipped", f"{until.step}: {until.metric} {until.op} {until.value}")
        if any(given.steps and self._chosen(given.steps) is None for given in step.inputs):
            return StepState(step.name, "skipped", "what it reads was skipped")
        return None

    def _branched(self, step: Step) -> str | None:
        """Why gates that branch keep a step from running: it is on the branch of none that failed, or behind one."""
        taken = {b.step for b in step.branch_of if b.gate in self.states[b.step].branches}
        if step.branch_of and not taken:
            return f"only if a gate of {', '.join(dict.fromkeys(b.step for b in step.branch_of))} fails"
        barred = [name for name in step.needs if self.states[name].branches and name not in taken]
        return f"a gate of {barred[0]} failed: its branch runs instead" if barred else None

    def _holds(self, until: Until) -> bool:
        manifest = self.states[until.step].manifest
        value = manifest.metrics.get(until.metric) if manifest else None
        if not isinstance(value, int | float):
            known = ", ".join(manifest.metrics) if manifest else ""
            raise StepError(f"until: {until.step} has no number `{until.metric}`; it has: {known or 'none'}")
        return COMPARE[until.op](value, until.value)

    def _chosen(self, candidates: tuple[str, ...]) -> Manifest | None:
        found = (self.states[name] for name in candidates)
        return next((s.manifest for s in found if s.state in FINISHED), None)

    def _found(self, step: Step) -> StepState | None:
        manifest = self.store.find(step.kind, step.key)
        if manifest is None:
            return None
        back = f"; restored from DVC's cache: {', '.join(files)}" if (files := self.restored.get(step.name)) else ""
        return StepState(step.name, "cached", f"made by run {manifest.run}{back}", manifest)

    def _tried(self, step: Step, on_line: Callable[[str], None]) -> StepState:
        begun, error = time.monotonic(), ""
        for attempt in range(step.retries + 1):
            if spent := self.ledger.stops():
                error = error or spent
                break
            if error:
                self.reporter.event({"type": "retry", "step": step.name, "attempt": attempt + 1, "reason": error})
            try:
                manifest = self._once(step, on_line)
            except StepError as failure:
                error = hidden(_said(step, failure), secrets_of(step.settings))
                if self.stop.is_set():
                    return StepState(step.name, "cancelled", "stopped; `posttrain resume` goes on from its checkpoints")
                continue
            shared = manifest.run != self.run
            state, why = ("cached", f"made by run {manifest.run} meanwhile") if shared else ("done", "")
            return StepState(step.name, state, why, manifest, time.monotonic() - begun)
        return StepState(step.name, "failed", error, seconds=time.monotonic() - begun)

    def _once(self, step: Step, on_line: Callable[[str], None]) -> Manifest:
        """One try, watched until it ends, exceeds its time limit or the run is stopped."""
        if self.executor is None:
            raise StepError(f"{step.name}: its artifact disappeared while the run was going on; run again")
        spec = self._spec(step)
        log = Tail(self.layout.work(step.key) / "step.log", at_end=True)
        progress = Tail(progress_file(self.layout, step.key, spec["attempt"]))
        with closing(progress), closing(log):
            handle = self.executor.submit(spec)
            try:
                seen = self._watch(step, handle, progress, log, on_line)
                manifest = Manifest.model_validate(handle.result())
            except BaseException:
                self.ledger.end(step)
                raise
        made_here = manifest.run == self.run
        spent = manifest.seconds, manifest.tokens, manifest.paid, manifest.paid_tokens
        self.ledger.end(step, spent if made_here else None)
        if not seen:  # it was over, and its progress gone, before the first look
            self._told(step, {"started": 0})
        return manifest

    def _watch(self, step: Step, handle: Handle, progress: Tail, log: Tail, on_line: Callable[[str], None]) -> bool:
        """Tell how the step goes until it ends; returns whether anything was seen of it."""
        ended, started, seen, secrets = False, None, False, secrets_of(step.settings)
        while not ended:
            ended = handle.wait(POLL)
            for event in progress.events():
                started, seen = time.monotonic() if "started" in event else started, True
                self._told(step, event)
            for line in log.lines(self.layout.artifact(step.kind, step.key) / "step.log" if ended else None):
                said = hidden(line, secrets)
                on_line(said)
                self.reporter.event({"type": "log", "step": step.name, "line": said})
            late = step.timeout is not None and started is not None and time.monotonic() - started > step.timeout
            spent = self.ledger.stops()
            if not ended and (late or spent or self.stop.is_set()):
                handle.kill()
                why = f"exceeded its time limit of {step.timeout:g} s" if late else spent or "stopped"
                raise StepError(f"{step.name}: {why}, its process was ended")
        return seen

    def _told(self, step: Step, event: dict[str, Any]) -> None:
        if "spent" in event:
            self.ledger.tokens(step, event["spent"], event.get("paid"))
        elif "started" in event or "waiting" in event:
            if event.get("started"):
                self.ledger.begin(step)
            why = {} if "started" in event else {"reason": "another run is doing this step; waiting for it"}
            self.reporter.event({"type": "step", "step": step.name, "state": "running", **why})
        else:
            at = event.pop("step", None)
            self.reporter.event({"type": "progress", "step": step.name, "at": at, **event})

    def _spec(self, step: Step) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for given in step.inputs:
            made = self._chosen(given.steps) if given.steps else None
            if made is not None:
                inputs[given.port] = {"kind": made.kind, "key": made.key, "output": given.output, "step": made.step}
            else:
                inputs[given.port] = {"source": given.source, "digest": given.digest}
        return {
            "root": str(self.layout.root), "run": self.run, "recipe": self.plan.recipe, "folders": self.folders,
            "attempt": secrets.token_hex(4), "step": step.model_dump(mode="json"), "inputs": inputs,
            "whole_process": False,
        }  # fmt: skip


def _said(step: Step, error: StepError) -> str:
    """The message without the step's name, which stands beside it everywhere."""
    return str(error).removeprefix(f"{step.name}: ")


def execute(execution: Execution) -> dict[str, StepState]:
    """Perform every step that has not ended as soon as what it needs has; independent ones at the same time."""
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
