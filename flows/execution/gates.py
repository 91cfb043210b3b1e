"""Verdicts of the gates of an evaluation: from its outcome, the plan's `on_fail`, and decisions of people."""

from dataclasses import dataclass
from typing import Literal

from flows.execution.approvers import counts
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
    """What it measured and required; for a decision also who decided, when and why."""
    decision: str = ""
    """Who decided, when and why: `by ada at 2026-11-23T10:00:00+00:00: too slow`; empty without a decision."""


def judge_gates(step: Step, manifest: Manifest, layout: Layout) -> tuple[GateState, ...]:
    """Return the gates of a finished step; the plan, not the artifact, decides what a failed gate does."""
    policies = step.settings.get("gate") or []
    states = []
    for index, outcome in enumerate(manifest.details.get("gates", [])):
        policy = policies[index] if index < len(policies) else outcome
        text = str(outcome.get("text", ""))
        verdict: Verdict = "passed" if outcome.get("passed") else VERDICTS[policy.get("on_fail", "stop")]
        decided = latest_decision(layout, manifest.key, index) if verdict == "waiting" else None
        decision = ""
        if decided is not None and counts(decided, policy.get("approvers") or []):
            verdict = "approved" if decided["decision"] == "approve" else "rejected"
            described = describe_decision(decided)
            text = f"{text}; {described}" if text else described
            decision = " ".join(described.removeprefix(verdict).split())
        states.append(GateState(index, str(outcome.get("metric", "gate")), verdict, text, decision))
    return tuple(states)
