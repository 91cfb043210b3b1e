"""HIT or MISS for each step of a plan, with the first difference from when the step last ran."""

from typing import Literal

from flows.planning.difference import find_first_difference
from flows.planning.facts_cache import FactsCache
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.tracing.history import find_latest
from schemas.manifest import Manifest
from schemas.plan import Plan, Step

Verdict = tuple[Literal["HIT", "MISS"], str]


def explain_plan(plan: Plan, layout: Layout) -> dict[str, Verdict]:
    """Return, by step, (HIT, the run that made it) or (MISS, the reason)."""
    store, definitions = Store(layout), FactsCache(layout)
    before = find_latest(layout, plan.recipe, [step.name for step in plan.steps])
    verdicts: dict[str, Verdict] = {}
    for step in plan.steps:
        verdicts[step.name] = _explain_step(step, plan, store, before.get(step.name), verdicts, definitions)
    return verdicts


def _explain_step(
    step: Step, plan: Plan, store: Store, last: Manifest | None, verdicts: dict[str, Verdict], definitions: FactsCache
) -> Verdict:
    condition = store.examine(step.kind, step.key)
    if condition.manifest is not None and condition.is_complete:
        return "HIT", f"made by run {condition.manifest.run}"
    if condition.damages:
        again = "restores it from DVC's cache" if store.is_restorable(condition) else "makes it again"
        return "MISS", f"its artifact is damaged: {condition.text}; a run {again}"
    if "fresh" in step.identity:
        return "MISS", "runs again although its artifact exists (fresh)"
    if last is None:
        return "MISS", "never ran" if not (store.layout.work(step.key)).exists() else "never finished"
    reason = find_first_difference(last.identity, step.identity, definitions)
    if reason.startswith("input "):
        reason = _explain_input(step, plan, last, verdicts) or reason
    return "MISS", reason


def _explain_input(step: Step, plan: Plan, last: Manifest, verdicts: dict[str, Verdict]) -> str | None:
    before = last.identity.get("inputs", {})
    for step_input in step.inputs:
        now = step.identity["inputs"][step_input.port]
        if before.get(step_input.port) == now:
            continue
        if step_input.source is not None:
            return f"input {step_input.port}: the content of {step_input.source} changed"
        again = [name for name in step_input.steps if verdicts[name][0] == "MISS"]
        return (
            f"input {step_input.port}: {', '.join(again)} runs again"
            if again
            else f"input {step_input.port}: is {step_input.steps[0]} now"
        )
    return None
