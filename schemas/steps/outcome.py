"""Checks `outcome:` of a recipe against its steps, and returns the steps that its report needs."""

from collections.abc import Iterator, Mapping

from schemas.errors import Problem
from schemas.gates import name_metric, split_metric
from schemas.outcome import Outcome
from schemas.source.tree import Node, make_problem
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_control import EvaluateControl
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest


def check_outcome(node: Node, outcome: Outcome, steps: Mapping[str, StepInfo]) -> Iterator[Problem]:
    """Yield a problem for a report, a model or a metric that the recipe does not have."""
    reports = {n: info.stage for n, info in steps.items() if isinstance(info.stage, Evaluate | EvaluateControl)}
    report = reports.get(outcome.report)
    if report is None:
        message = f"`{outcome.report}` is no evaluate stage"
        yield _make_problem(node, "report", message, suggest(outcome.report, reports, "evaluate stages"))
        return
    rules = report.policies if isinstance(report, EvaluateControl) else {}
    for key, known in (("method", report.models), ("against", report.models | rules), ("start", report.models | rules)):
        name = getattr(outcome, key)
        if name is not None and name not in known:
            message = f"`{outcome.report}` evaluates no model `{name}`"
            yield _make_problem(node, key, message, suggest(name, known, "models"))
    if outcome.method == outcome.against:
        yield _make_problem(node, "against", "a method cannot be compared with itself", "name another model")
    metrics = [name_metric(metric) for metric in steps[outcome.report].dump()["metrics"]]
    if split_metric(outcome.metric, metrics) is None:
        message = f"`{outcome.report}` has no metric `{outcome.metric}`"
        yield _make_problem(node, "metric", message, suggest(outcome.metric, metrics, "metrics"))


def list_needed(steps: Mapping[str, StepInfo], end: str) -> list[str]:
    """Return the steps that one step needs, itself included, in the order of the recipe."""
    needed, frontier = {end}, [end]
    while frontier:
        before = set(steps[frontier.pop()].needs)
        frontier += before - needed
        needed |= before
    return [name for name in steps if name in needed]


def _make_problem(node: Node, key: str, message: str, advice: str) -> Problem:
    return make_problem((node.get(key) or node).mark, f"outcome.{key}", message, advice)
