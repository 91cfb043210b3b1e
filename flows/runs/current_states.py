"""States of the steps of a run as they are now: gates that waited for a person may have been decided since."""

from flows.execution.events import RecordedStep
from flows.execution.gates import judge_gates
from flows.execution.run_log import read_step_events
from flows.execution.states import StepState
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.plan import Plan


def read_current_states(layout: Layout, run: str, plan: Plan) -> dict[str, RecordedStep]:
    """Return the last event of every step of a run, by step; gates that waited have the decision made since then.

    What a decision lets go on is still blocked: only `resume` runs it.
    """
    events = read_step_events(layout, run)
    decided = {
        name: state
        for name, event in events.items()
        if "waits for approval" in event.get("gates", "") and (state := _judge_again(layout, plan, name)) is not None
    }
    for name, state in decided.items():
        events[name] = {**events[name], "state": "done", "reason": "", "gates": state.gate_text}
    for name, event in events.items():
        for state in decided.values():
            if event["state"] == "blocked" and event.get("reason", "").startswith(f"a gate of {state.step} waits for"):
                approved = f"a gate of {state.step} was approved since; posttrain resume {run}"
                events[name] = {**event, "reason": state.stop_reason if state.gate else approved}
    return events


def _judge_again(layout: Layout, plan: Plan, name: str) -> StepState | None:
    """Return the state of a finished evaluation by the decisions of today; None while one of its gates waits."""
    step = plan.step(name)
    manifest = Store(layout).find(step.kind, step.key)
    if manifest is None:
        return None
    state = StepState(name, "done", manifest=manifest, gates=judge_gates(step, manifest, layout))
    return None if state.waits else state
