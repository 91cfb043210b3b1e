"""States of the steps of a run, and the exit code that follows from them."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flows.execution.events import State, StepEvent
from flows.execution.gates import STOPPING, GateState
from schemas.manifest import Manifest

FINISHED = frozenset({"cached", "done"})
STUCK = frozenset({"failed", "blocked", "cancelled"})
STYLES: dict[str, str] = {
    "queued": "dim",
    "running": "bold cyan",
    "cached": "blue",
    "done": "green",
    "failed": "bold red",
    "skipped": "dim",
    "blocked": "yellow",
    "cancelled": "yellow",
    "waiting": "bold magenta",
}
"""How a state looks in the terminal."""
EXIT_CANCELLED = 130
NEXT_GATE = re.compile("; (?=gate [a-z ]+: )")
"""What is between two gates of a text; reasons of people may have semicolons, too."""
ENDS = {
    "gate failed:": "a gate failed",
    "gate rejected:": "a gate was rejected",
    "gate waits for approval:": "a gate waits for approval",
    "gate approved:": "a gate was approved since; continue with: posttrain resume",
}
"""Why gates ended a run with exit code 2, by the beginning of a gate's text; the first that applies counts."""


@dataclass(frozen=True)
class StepState:
    """The state of one step."""

    step: str
    state: State
    reason: str = ""
    """The error, what blocked the step, or which condition skipped it; empty where that is obvious."""
    manifest: Manifest | None = None
    """Of a finished step."""
    seconds: float = 0.0
    """Wall time in this run."""
    gates: tuple[GateState, ...] = ()
    """Of a finished evaluation."""

    @property
    def gate(self) -> str:
        """Return the gates of a finished step that stop what depends on it; empty when none does."""
        return ", ".join(g.name for g in self.gates if g.verdict in STOPPING)

    @property
    def failed(self) -> str:
        """Return the gates of a finished step that failed and that no person decides about; empty when none did."""
        return ", ".join(g.name for g in self.gates if g.verdict == "failed")

    @property
    def rejected(self) -> str:
        """Return the gates of a finished step that people rejected, with who, when and why; empty when none was."""
        return "; ".join(f"{g.name} ({g.decision})" for g in self.gates if g.verdict == "rejected")

    @property
    def waits(self) -> str:
        """Return the gates of a finished step that wait for approval; empty when none does."""
        return ", ".join(g.name for g in self.gates if g.verdict == "waiting")

    @property
    def branches(self) -> frozenset[int]:
        """Return the indices of the gates whose branches run in place of what depends on the step."""
        return frozenset(g.index for g in self.gates if g.verdict == "branched")

    @property
    def gate_text(self) -> str:
        """Return the verdicts of the gates as text; empty when all of them passed."""
        parts = [f"gate failed: {self.failed}"] if self.failed else []
        parts += [f"gate waits for approval: {self.waits}"] if self.waits else []
        parts += [f"gate {g.verdict}: {g.name}" for g in self.gates if g.verdict in ("branched", "approved", "warned")]
        parts += [f"gate rejected: {g.name} ({g.decision})" for g in self.gates if g.verdict == "rejected"]
        return "; ".join(parts)

    @property
    def stops(self) -> bool:
        """Return whether what depends on this step cannot run."""
        return self.state in STUCK or bool(self.gate) or bool(self.waits)

    @property
    def stop_reason(self) -> str:
        """Return why what depends on this step cannot run."""
        if self.waits:
            return f"a gate of {self.step} waits for approval: {self.waits}"
        if self.failed:
            return f"the gate of {self.step} failed: {self.failed}"
        return (
            f"the gate of {self.step} was rejected: {self.rejected}" if self.rejected else f"{self.step} {self.state}"
        )

    def as_event(self) -> StepEvent:
        """Return the event that reporters and the event log receive."""
        event = StepEvent(type="step", step=self.step, state=self.state, seconds=self.seconds)
        if self.reason:
            event["reason"] = self.reason
        if self.manifest is not None:
            event["key"], event["kind"] = self.manifest.key, self.manifest.kind
            event["metrics"] = self.manifest.metrics
        if self.gate:
            event["gate"] = self.gate
        if self.gate_text:
            event["gates"] = self.gate_text
        return event


def describe_states(states: Iterable[StepState]) -> str:
    """Return how many steps are in each state, as `2 done, 1 failed`."""
    return ", ".join(f"{count} {name}" for name, count in Counter(state.state for state in states).items())


def split_gates(text: str) -> list[str]:
    """Return the texts of single gates of a `StepState.gate_text`."""
    return NEXT_GATE.split(text)


def describe_gate_ends(texts: Iterable[str]) -> str:
    """Return why gates ended a run with exit code 2, from the `gate_text` of its steps."""
    gates = [gate for text in texts for gate in split_gates(text)]
    return next((end for start, end in ENDS.items() if any(gate.startswith(start) for gate in gates)), "a gate failed")


def compute_exit_code(states: dict[str, StepState]) -> int:
    """Return 0 when all went well, 130 for a cancelled run, 1 for a failed step, 2 for a gate that failed or waits."""
    if any(s.state == "cancelled" for s in states.values()):
        return EXIT_CANCELLED
    if any(s.state == "failed" for s in states.values()):
        return 1
    return 2 if any(s.gate or s.waits for s in states.values()) else 0
