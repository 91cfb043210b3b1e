"""Gates that wait for a person's approval: inside a run that Prefect shows, and for `posttrain approve`."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rich.console import Console

from flows.execution.approvers import COMMAND_LINE, verify_approver
from flows.execution.execute import Execution
from flows.execution.gates import GateState, judge_gates
from flows.execution.run_log import read_plan
from flows.execution.states import StepState
from lineage.artifacts.store import Store
from lineage.audit import log as audit_log
from lineage.audit.approvals import Decision, DecisionRecord, append_decision, describe_decision, latest_decision
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.plan import Step
from schemas.suggestions import suggest

LOOK = 0.2
"""Seconds between looks for a decision."""


@dataclass(frozen=True)
class ApprovalRequest:
    """A gate that a person has to decide about."""

    step: Step
    manifest: Manifest
    gate: GateState
    within: float
    """Seconds to wait for the answer."""


@dataclass(frozen=True)
class PersonalDecision:
    """What a person decided."""

    decision: Decision
    name: str
    reason: str


class PendingStep(Protocol):
    """A running step in another thread."""

    @property
    def wrapped_future(self) -> Future[Any]:
        """Return the thread's own future, which sends no request to a server."""
        ...

    def wait(self) -> None:
        """Return when the step has ended."""


AskPerson = Callable[[ApprovalRequest, Callable[[], bool]], PersonalDecision | None]
"""Asks a person; None when its function returns True, or without an answer in time."""


class ApprovalQueue:
    """The gates of one run that wait for people while other steps run.

    `ask` is called in the threads of steps, `attend` in the flow, which alone can pause.
    """

    def __init__(self, execution: Execution, pause: AskPerson):
        self.execution, self.pause = execution, pause
        self.questions: deque[ApprovalRequest] = deque()
        self.unanswered: set[tuple[str, int]] = set()
        self.lock = threading.Lock()

    def ask(self, step: Step, state: StepState) -> StepState:
        """Wait until every gate of a finished evaluation is decided or unanswered in time, or the run is stopped."""
        assert state.manifest is not None
        run = self.execution
        policies = step.settings["gate"]
        command = f"posttrain approve {run.run} {step.name}"
        approvers = sorted({name for policy in policies for name in policy.get("approvers") or []})
        how = f"{', '.join(approvers)} may decide: {command}" if approvers else f"decide in Prefect, or: {command}"
        waiting = state.as_event()
        waiting["state"], waiting["reason"] = "waiting", how
        run.reporter.report(waiting)
        ends: dict[int, float] = {}
        for gate in (g for g in state.gates if g.verdict == "waiting"):
            within = float(policies[gate.index]["approve_within"])
            if policies[gate.index].get("approvers"):  # Prefect's form takes any name
                ends[gate.index] = time.monotonic() + within
                continue
            self.questions.append(ApprovalRequest(step, state.manifest, gate, within))
        gates = state.gates
        while not run.stop.is_set():
            gates = judge_gates(step, state.manifest, run.layout)
            with self.lock:
                self.unanswered |= {(step.name, index) for index, end in ends.items() if time.monotonic() >= end}
                if not any(g.verdict == "waiting" and (step.name, g.index) not in self.unanswered for g in gates):
                    break
            run.stop.wait(LOOK)
        return replace(state, gates=gates)

    def attend(self, futures: Iterable[PendingStep]) -> None:
        """Wait for all steps, and ask about those that wait for people."""
        pending = {future.wrapped_future: future for future in futures}
        while pending:
            if self.questions:
                self._pause(self.questions.popleft())
                continue
            for ended in wait(pending, LOOK, FIRST_COMPLETED).done:
                pending.pop(ended).wait()

    def _pause(self, question: ApprovalRequest) -> None:
        layout, step, index = self.execution.layout, question.step, question.gate.index

        def is_over() -> bool:
            decided = latest_decision(layout, question.manifest.key, index) is not None
            return decided or self.execution.stop.is_set()

        answer = None if is_over() else self.pause(question, is_over)
        if answer is not None and not is_over():
            answer = replace(answer, name=f"{answer.name} (claimed in Prefect's form)")
            record_answer(
                layout, self.execution.run, question.step, question.manifest, question.gate, answer, "prefect"
            )
        elif latest_decision(layout, question.manifest.key, index) is None:
            with self.lock:
                self.unanswered.add((step.name, index))


def record_answer(
    layout: Layout, run: str, step: Step, manifest: Manifest, gate: GateState, answer: PersonalDecision, via: str
) -> DecisionRecord:
    """Record a decision about a gate in the audit log and next to the evaluation's key."""
    measured = manifest.details["gates"][gate.index].get("text", "")
    return append_decision(
        layout,
        manifest.key,
        gate.index,
        answer.decision,
        name=answer.name,
        reason=answer.reason,
        step=step.name,
        run=run,
        metric=gate.name,
        text=measured,
        via=via,
    )


def decide_gates(
    layout: Layout, run: str, step_name: str, choice: Decision, reason: str, name: str | None, console: Console
) -> list[DecisionRecord]:
    """Decide about the gates of a step that wait for a person or were decided otherwise before; return the records.

    Raise PlanError if the step is unknown or has not run, or if none of its gates needs a person.
    """
    plan = read_plan(layout, run)
    names = [s.name for s in plan.steps]
    if step_name not in names:
        raise PlanError(f"no step `{step_name}` in run {run}; {suggest(step_name, names, 'steps')}")
    if not reason.strip():
        raise PlanError("a decision needs a reason: --reason TEXT")
    step = plan.step(step_name)
    manifest = Store(layout).find(step.kind, step.key)
    if manifest is None:
        raise PlanError(f"{step_name} has not run yet, so there is nothing to decide")
    settled = "approved" if choice == "approve" else "rejected"
    gates = [
        g for g in judge_gates(step, manifest, layout) if g.verdict in {"waiting", "approved", "rejected"} - {settled}
    ]
    if not gates:
        raise PlanError(f"no gate of {step_name} can be {settled}; see: posttrain status {run}")
    for gate in gates:
        verify_approver(layout, run, step.settings["gate"][gate.index].get("approvers") or [], name)
    needs_account = any(step.settings["gate"][gate.index].get("approvers") for gate in gates)
    person = audit_log.read_account() if needs_account else audit_log.name_person(name)
    answer = PersonalDecision(choice, person, reason.strip())
    records: list[DecisionRecord] = []
    for gate in gates:
        records.append(record_answer(layout, run, step, manifest, gate, answer, COMMAND_LINE))
        console.print(
            f"{step_name}: {gate.name} {describe_decision(records[-1])}", highlight=False, markup=False, soft_wrap=True
        )
    console.print(f"a waiting run continues by itself; continue an ended one with: posttrain resume {run}")
    return records
