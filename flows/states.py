"""How the steps of a run stand."""

from dataclasses import dataclass
from typing import Any, Literal

from schemas.manifest import Manifest

State = Literal["queued", "running", "cached", "done", "failed", "skipped", "blocked", "cancelled"]
FINISHED = frozenset({"cached", "done"})
STUCK = frozenset({"failed", "blocked", "cancelled"})
STYLES: dict[str, str] = {
    "queued": "dim", "running": "bold cyan", "cached": "blue", "done": "green", "failed": "bold red",
    "skipped": "dim", "blocked": "yellow", "cancelled": "yellow",
}  # fmt: skip
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

    @property
    def gate(self) -> str:
        """Which gate of a finished step says stop; empty when none does."""
        gates: list[dict[str, Any]] = self.manifest.details.get("gates", []) if self.manifest else []
        failed = [g for g in gates if not g.get("passed") and g.get("on_fail", "stop") == "stop"]
        return ", ".join(str(g.get("metric", "gate")) for g in failed)

    @property
    def stops(self) -> bool:
        """Whether what depends on this step cannot run."""
        return self.state in STUCK or bool(self.gate)

    def event(self) -> dict[str, Any]:
        """As reporters and the event log see it."""
        told: dict[str, Any] = {"type": "step", "step": self.step, "state": self.state, "seconds": self.seconds}
        if self.reason:
            told["reason"] = self.reason
        if self.manifest is not None:
            told |= {"key": self.manifest.key, "kind": self.manifest.kind, "metrics": self.manifest.metrics}
        if self.gate:
            told["gate"] = self.gate
        return told


def exit_code(states: dict[str, StepState]) -> int:
    """0 when all went well, 130 when the run was cancelled, 1 when a step failed, 2 when a gate did."""
    if any(s.state == "cancelled" for s in states.values()):
        return EXIT_CANCELLED
    if any(s.state == "failed" for s in states.values()):
        return 1
    return 2 if any(s.gate for s in states.values()) else 0
