"""How the steps of a run stand."""

from dataclasses import dataclass
from typing import Any, Literal

from flows.execution.gates import STOPPING, GateState
from schemas.manifest import Manifest

State = Literal["queued", "running", "cached", "done", "failed", "skipped", "blocked", "cancelled", "waiting"]
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


@dataclass(frozen=True)
class StepState:
    """How one step ended, or stands."""

    step: str
    state: State
    reason: str = ""
    """Why, where that is not obvious: the error, what blocked it, which condition skipped it."""
    manifest: Manifest | None = None
    """Of a finished step."""
    seconds: float = 0.0
    """Wall time in this run."""
    gates: tuple[GateState, ...] = ()
    """Of a finished evaluation."""

    @property
    def gate(self) -> str:
        """Which gate of a finished step says stop; empty when none does."""
        return ", ".join(g.name for g in self.gates if g.verdict in STOPPING)

    @property
    def waits(self) -> str:
        """Which gate of a finished step waits for a person; empty when none does."""
        return ", ".join(g.name for g in self.gates if g.verdict == "waiting")

    @property
    def branches(self) -> frozenset[int]:
        """The gates whose branches run in place of what depends on the step."""
        return frozenset(g.index for g in self.gates if g.verdict == "branched")

    @property
    def gate_text(self) -> str:
        """What its gates say, for people; empty when all of them passed."""
        said = [f"gate failed: {self.gate}"] if self.gate else []
        said += [f"gate waits for approval: {self.waits}"] if self.waits else []
        said += [f"gate {g.verdict}: {g.name}" for g in self.gates if g.verdict in ("branched", "approved", "warned")]
        return "; ".join(said)

    @property
    def stops(self) -> bool:
        """Whether what depends on this step cannot run."""
        return self.state in STUCK or bool(self.gate) or bool(self.waits)

    def event(self) -> dict[str, Any]:
        """As reporters and the event log see it."""
        told: dict[str, Any] = {"type": "step", "step": self.step, "state": self.state, "seconds": self.seconds}
        if self.reason:
            told["reason"] = self.reason
        if self.manifest is not None:
            told |= {"key": self.manifest.key, "kind": self.manifest.kind, "metrics": self.manifest.metrics}
        if self.gate:
            told["gate"] = self.gate
        if self.gate_text:
            told["gates"] = self.gate_text
        return told


def exit_code(states: dict[str, StepState]) -> int:
    """0 when all went well, 130 when the run was cancelled, 1 when a step failed, 2 when a gate did or waits."""
    if any(s.state == "cancelled" for s in states.values()):
        return EXIT_CANCELLED
    if any(s.state == "failed" for s in states.values()):
        return 1
    return 2 if any(s.gate or s.waits for s in states.values()) else 0
