"""Before a run: the smallest difference that each gate of a plan can detect, and which steps gates decide about."""

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtri

from learning.evaluation.gate_questions import Question, list_questions
from learning.evaluation.paired_tests import POWER, find_minimum_detectable
from lineage.layout import Layout
from lineage.tracing.history import find_latest
from schemas.base import JsonObject
from schemas.checks.gates import name_metric
from schemas.gates import Gate, split_metric
from schemas.manifest import Manifest
from schemas.plan import Plan, Step
from schemas.stages.union import traits_of

WORST = 1.0
"""Spread of differences of values between 0 and 1 when the models never agree."""


def describe_gate_power(plan: Plan, layout: Layout) -> list[str]:
    """Return one line per tested difference: what the gate detects, from the latest evaluation or at worst.

    A difference of this size is detected in 80 % of evaluations.
    """
    comparing = [s for s in plan.steps if any(g.get("against") for g in s.settings.get("gate") or ())]
    if not comparing:
        return []
    before = find_latest(layout, plan.recipe, [step.name for step in comparing])
    last = {name: manifest for name, manifest in before.items() if traits_of(manifest.kind).scores_models}
    return [line for step in comparing for line in _describe_step(step, last.get(step.name))]


def _describe_step(step: Step, last: Manifest | None) -> Iterator[str]:
    names = list(step.settings["models"]) or ["model"]
    for raw in step.settings["gate"]:
        gate = Gate.model_validate(raw)
        for question in list_questions(gate, step.settings["confidence"]) if gate.against else ():
            pair = f"{question.name} of {gate.model or names[-1]} − {gate.against}"
            yield f"gate of {step.name}: {pair}: {_describe_detectable(step, gate, question, last)}"


def _describe_detectable(step: Step, gate: Gate, question: Question, last: Manifest | None) -> str:
    earlier = _find_earlier_test(question, gate, last) if last else None
    planned = _count_problems(step, question.name)
    if earlier is None and (planned is None or not _is_share(step, question.name)):
        return "the detectable difference is known after the first evaluation"
    n = planned or 0
    if last and earlier and (planned is None or last.details.get("problems") == _count_problems(step, "")):
        n = earlier[0]
    spread, floor = earlier[1:] if earlier else (WORST, 0.0)
    detectable = find_minimum_detectable(n, question.tail, spread=spread, test=gate.test, floor=floor)
    rates = f"error rate {question.tail:.2g}, power {POWER:g}"
    basis = f"spread {spread:.2f} as in run {last.run}" if earlier and last else "at worst: it was never evaluated"
    if detectable is None or detectable > 1:
        return f"{n:,} problems are too few to show any difference ({rates}; {basis})"
    return f"{n:,} problems show a difference of {detectable:.3f} ({rates}; {basis})"


def _find_earlier_test(question: Question, gate: Gate, last: Manifest) -> tuple[int, float, float] | None:
    """Return problems, spread and noise floor of the same test, else of a comparison of the metric; None without."""
    for outcome in last.details.get("gates", []):
        for test in outcome.get("tests", []):
            if test["name"] == question.name and outcome.get("model") == (gate.model or outcome.get("model")):
                return test["n"], test["spread"], test["floor"] if gate.noise_repeats else 0.0
    confidence = last.details.get("confidence", 0.95)
    width = ndtri(1 - (1 - confidence) / 2) + ndtri(POWER)
    for line in reversed(last.details.get("comparisons", [])):
        name = line["metric"] if line["family"] == "all" else f"{line['metric']}.{line['family']}"
        if name == question.name and line["detectable"] is not None:
            deviation = line["detectable"] * np.sqrt(line["n"]) / width
            return line["n"], float(np.sqrt(deviation**2 * (line["n"] - 1) / line["n"] + line["value"] ** 2)), 0.0
    return None


def _count_problems(step: Step, name: str) -> int | None:
    """Return the problems that a step's tasks make, of the metric's family; None if the settings do not define them."""
    parts = split_metric(name, [name_metric(m) for m in step.settings["metrics"]])
    family = parts[1] if parts else None
    tasks: list[JsonObject] = step.settings.get("tasks") or []
    if not tasks or step.settings.get("prompts") or any("size" not in task for task in tasks):
        return None
    if family is not None:
        tasks = [task for task in tasks if task.get("family") == family]
        if not tasks:
            return None
    limit = step.settings.get("limit")
    return sum(min(task["size"], limit or task["size"]) for task in tasks)


def _is_share(step: Step, name: str) -> bool:
    """Return whether a metric is built in, and so lies between 0 and 1."""
    parts = split_metric(name, [name_metric(m) for m in step.settings["metrics"]])
    return parts is not None and all(
        ":" not in m["use"] for m in step.settings["metrics"] if name_metric(m) == parts[0]
    )


def describe_condition(step: Step, plan: Plan) -> str:
    """Return whether a step runs only if a gate fails, or only if it passes; empty if no gate decides."""
    if step.branch_of:
        return f"only if a gate of {', '.join(dict.fromkeys(b.step for b in step.branch_of))} fails"
    there = {s.name: s for s in plan.steps}
    before = [there[name] for name in step.needs if name in there]
    branching = [s.name for s in before if any(g.get("on_fail") == "branch" for g in s.settings.get("gate") or ())]
    return f"unless a gate of {', '.join(branching)} fails" if branching else ""
