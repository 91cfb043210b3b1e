"""Rules for gates: known metrics, known models and applicable tests."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.gates import Gate, list_regressions, name_metric, split_metric
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_rewards import EvaluateRewards
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest

SHARES = ("accuracy", "pass_at", "win_rate")
"""Metrics that are a share."""


def check_gates(info: StepInfo, stage: Evaluate | EvaluateRewards) -> Iterator[Problem]:
    """Yield the problems with the gates of a step."""
    options = {name_metric(m): m for m in info.dump()["metrics"]}
    for index, gate in enumerate(stage.gate):
        path = f"gate.{index}"
        yield from _check_metrics(info, gate, path, list(options))
        yield from _check_bounds(info, gate, path, options)
        yield from _check_models(info, stage, gate, path)
        if isinstance(stage, Evaluate):
            yield from _check_tests(info, stage, gate, path, options)


def _check_metrics(info: StepInfo, gate: Gate, path: str, metrics: list[str]) -> Iterator[Problem]:
    named = {f"{path}.metric": gate.metric} | (
        {f"{path}.max_regression.{name}": name for name in gate.max_regression}
        if isinstance(gate.max_regression, dict)
        else {}
    )
    for where, name in named.items():
        if split_metric(name, metrics) is None:
            yield info.problem(where, f"no metric `{name}`", suggest(name, metrics, "metrics of this stage"))


def _check_bounds(info: StepInfo, gate: Gate, path: str, options: dict[str, dict[str, object]]) -> Iterator[Problem]:
    """Yield bounds that no share reaches: percentages, mostly."""
    metric = split_metric(gate.metric, list(options))
    if metric is None or options[metric[0]]["use"] not in SHARES:
        return
    bounds = {"min": (gate.min, 0, 1), "max": (gate.max, 0, 1), "min_delta": (gate.min_delta, -1, 1)}
    for key, (bound, low, high) in bounds.items():
        if bound is not None and not low <= bound <= high:
            message = f"`{gate.metric}` is a share from 0 to 1, and the gate could only ever decide one way"
            advice = f"write {bound / 100:g} for {bound:g} %" if abs(bound) <= 100 else f"give {low} to {high}"
            yield info.problem(f"{path}.{key}", message, advice)


def _check_models(info: StepInfo, stage: Evaluate | EvaluateRewards, gate: Gate, path: str) -> Iterator[Problem]:
    models = list(stage.models) or ["model"]
    further = stage.against if isinstance(stage, Evaluate) else ()
    others = [*models, *further, *(["champion"] if gate.against == "champion" else [])]
    for field, name, names in (("model", gate.model, models), ("against", gate.against, others)):
        if name is not None and name not in names:
            yield info.problem(f"{path}.{field}", f"no model `{name}`", suggest(name, names, "models of this stage"))
    if gate.against is not None and gate.against == (gate.model or models[-1]):
        yield info.problem(f"{path}.against", f"`{gate.against}` is compared with itself", "name another model")


def _check_tests(
    info: StepInfo, stage: Evaluate, gate: Gate, path: str, options: dict[str, dict[str, object]]
) -> Iterator[Problem]:
    if gate.noise_repeats and stage.temperature == 0:
        message = "greedy sampling repeats the same completions, so there is no noise to measure"
        yield info.problem(f"{path}.noise_repeats", message, "set `temperature`, or remove `noise_repeats`")
    if gate.test != "mcnemar" or stage.num_generations == 1 or stage.selector is not None:
        return
    for name in [gate.metric, *list_regressions(gate)]:
        metric = split_metric(name, list(options))
        if metric is not None and options[metric[0]].get("k") != stage.num_generations:
            message = (
                f"McNemar's test needs values of 0 or 1, but `{name}` of {stage.num_generations} samples is a share"
            )
            yield info.problem(f"{path}.test", message, "write `test: paired_bootstrap`, or `num_generations: 1`")
            return
