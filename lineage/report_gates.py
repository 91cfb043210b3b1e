"""The gates of a run for its report: outcome, what followed, and who decided."""

from collections.abc import Iterator
from typing import Any

from lineage.approvals import decision, sentence
from lineage.layout import Layout
from schemas.manifest import Manifest
from schemas.plan import Plan

FOLLOWS = {"stop": "failed", "warn": "failed, only said", "approve": "awaits approval"}


def gate_rows(plan: Plan, made: dict[str, Manifest], layout: Layout) -> Iterator[dict[str, Any]]:
    """One row per gate of the steps that are made: step, good (true, false, or null while open), outcome, texts."""
    for name, manifest in made.items():
        policies = plan.step(name).settings.get("gate") or []
        for index, told in enumerate(manifest.details.get("gates", [])):
            policy = policies[index] if index < len(policies) else told
            good, outcome, decided = bool(told.get("passed")), "passed", None
            if not good:
                on_fail = policy.get("on_fail", "stop")
                outcome = FOLLOWS.get(on_fail) or f"failed, branched to {', '.join(policy['branch'])}"
                decided = decision(layout, manifest.key, index) if on_fail == "approve" else None
            if decided is not None:
                good = decided["decision"] == "approve"
                outcome = "failed, approved" if good else "failed, rejected"
            texts = [str(told.get("text", "")), *([sentence(decided)] if decided else [])]
            is_open = outcome == FOLLOWS["approve"]
            yield {"step": name, "good": None if is_open else good, "outcome": outcome, "texts": texts}
