"""What method and comparator of one run cost: completions, tokens and environment steps, from their steps' records."""

import json
from collections.abc import Collection, Sequence

from flows.execution.results import is_number
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.outcome import Outcome
from schemas.pages.evidence import SeedResult, Spent
from schemas.plan import Plan, Step

STEPS = {"control": "environment_steps", "collect": "steps", "search": "environment_steps"}
"""The metric that counts environment steps, of each kind that takes some; for `search` those of its trials."""


def find_makers(plan: Plan, report: str, name: str, store: Store) -> list[str]:
    """Return the steps that made a model of the report, and its own agent, solver, environment and values.

    Of a loop, only the last step that ran. None for a rule in the report's `policies`. Raise PlanError for a model from
    outside.
    """
    if name in plan.step(report).settings.get("policies", {}):
        return []
    makers: list[str] = []
    inputs = {one.port: one.steps for one in plan.step(report).inputs}
    own = [p for p in inputs if p.startswith((f"solvers.{name}.", f"envs.{name}.", f"logits_processors.{name}."))]
    for port in (*own, f"models.{name}", f"agents.{name}"):
        steps = inputs.get(port, ())
        makers += [s for s in steps if store.find(plan.step(s).kind, plan.step(s).key) is not None][:1]
    if not makers:
        raise PlanError(f"{plan.recipe}: no step of this run makes {name}, so what it cost is unknown")
    return makers


def list_ancestors(plan: Plan, steps: Collection[str]) -> set[str]:
    """Return steps and all that they need."""
    needed = set(steps)
    for one in reversed(plan.steps):
        if one.name in needed:
            needed.update(one.needs)
    return needed


def sum_spending(plan: Plan, steps: Collection[str], layout: Layout) -> Spent:
    """Return what those of the steps that ran have cost; each step counts once, also if two are equal."""
    store, completions, tokens, taken = Store(layout), 0, 0, 0
    distinct = {step.key: step for step in plan.steps if step.name in steps}
    for step in distinct.values():
        manifest = store.find(step.kind, step.key)
        if manifest is not None:
            completions += count_completions(step, layout)
            tokens += manifest.tokens
            taken += count_environment_steps(manifest)
    return Spent(completions=completions, tokens=tokens, environment_steps=taken)


def count_environment_steps(manifest: Manifest) -> int:
    """Return the steps that a policy took in its worlds; 0 for kinds without worlds."""
    steps = manifest.metrics.get(STEPS.get(manifest.kind, ""))
    return round(steps) if is_number(steps) else 0


def count_completions(step: Step, layout: Layout) -> int:
    """Return the completions of an rl step, from its curves, whose points are means over the iterations since the last.

    0 for other kinds.
    """
    file = layout.artifact(step.kind, step.key) / "metrics.jsonl"
    if step.kind != "rl" or not file.is_file():
        return 0
    total, before = 0.0, 0
    for line in file.read_text(encoding="utf-8").splitlines():
        point = json.loads(line)
        total += point.get("completions", 0.0) * (point["step"] - before)
        before = point["step"]
    return round(total)


def find_unequal(outcome: Outcome, seeds: Sequence[SeedResult]) -> list[str]:
    """Return what method and comparator did not spend equally, beyond the outcome's tolerance, in words."""
    unequal = []
    for what in ("completions", "tokens", "environment_steps"):
        method = sum(getattr(one.method_spent, what) for one in seeds)
        against = sum(getattr(one.against_spent, what) for one in seeds)
        if abs(method - against) > outcome.tolerance * max(method, against):
            share = f"{outcome.method} {method / len(seeds):,.0f}, {outcome.against} {against / len(seeds):,.0f}"
            unequal.append(f"{what.replace('_', ' ')} per seed: {share}")
    return unequal
