"""What follows from the gates of an evaluation: its outcome, the plan's `on_fail`, and what a person decided."""

from dataclasses import dataclass
from typing import Literal

from lineage.audit.approvals import describe_decision, latest_decision
from lineage.layout import Layout
from schemas.manifest import Manifest
from schemas.plan import Step

Verdict = Literal["passed", "warned", "failed", "branched", "waiting", "approved", "rejected"]
STOPPING = frozenset({"failed", "rejected"})
VERDICTS: dict[str, Verdict] = {"stop": "failed", "warn": "warned", "branch": "branched", "approve": "waiting"}


@dataclass(frozen=True)
class GateState:
    """One gate of a finished evaluation."""

    index: int
    name: str
    """Its metric."""
    verdict: Verdict
    text: str
    """What it measured and wanted; for a decision also who, when and why."""


def judged(step: Step, manifest: Manifest, layout: Layout) -> tuple[GateState, ...]:
    """The gates of a finished step; what they do when they fail is said by the plan, not by the artifact."""
    policies = step.settings.get("gate") or []
    found = []
    for index, told in enumerate(manifest.details.get("gates", [])):
        policy = policies[index] if index < len(policies) else told
        text = str(told.get("text", ""))
        verdict: Verdict = "passed" if told.get("passed") else VERDICTS[policy.get("on_fail", "stop")]
        if verdict == "waiting" and (decided := latest_decision(layout, manifest.key, index)) is not None:
            verdict = "approved" if decided["decision"] == "approve" else "rejected"
            text = f"{text}; {describe_decision(decided)}" if text else describe_decision(decided)
        found.append(GateState(index, str(told.get("metric", "gate")), verdict, text))
    return tuple(found)
