"""Scores of the models of a finished report, per problem where the metric is a mean over problems."""

from dataclasses import dataclass

import numpy as np

from flows.execution.results import read_scores
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.gates import split_metric
from schemas.manifest import Manifest
from schemas.suggestions import suggest

ACCURACY, MEAN_RETURN = "accuracy", "mean_return"
"""Metrics that are means over problems."""
SLACK = 1e-9
"""Rounding of a weighted sum of rewards that an evaluation forgives."""


@dataclass(frozen=True)
class ReportScores:
    """A metric of each model of one report."""

    values: dict[str, float]
    """By model."""
    problems: dict[str, dict[str, float]]
    """By model and problem; empty for a metric that is not a mean over problems."""


def read_report_scores(
    manifest: Manifest, metric: str, models: tuple[str, ...], threshold: float | None, layout: Layout
) -> ReportScores:
    """Return a metric (`accuracy`, `accuracy.chain_sum`, `pass_at_8`) of models. Raise PlanError if there is none.

    `threshold` is the least score of a correct sample, as in the report's settings; None for control policies.
    """
    scores = read_scores(manifest)
    name, family = split_metric(metric, [row["metric"] for row in scores]) or (metric, None)
    rows = [row for row in scores if row["metric"] == name and row["family"] == (family or "all")]
    values = {row["model"]: row["value"] for row in rows}
    missing = [model for model in models if model not in values]
    if missing:
        known = dict.fromkeys(f"{row['metric']}.{row['family']}" for row in read_scores(manifest))
        raise PlanError(f"the report has no `{metric}` of {', '.join(missing)}; {suggest(metric, known, 'metrics')}")
    values = {model: values[model] for model in models}
    if name == MEAN_RETURN:
        return ReportScores(values, read_problem_means(manifest, family, None, layout))
    return ReportScores(values, read_problem_means(manifest, family, threshold, layout) if name == ACCURACY else {})


def read_problem_means(
    manifest: Manifest, family: str | None, threshold: float | None, layout: Layout
) -> dict[str, dict[str, float]]:
    """Return the mean score of every model on every problem, from the samples of a report.

    With a threshold it is the share of samples that reach it.
    """
    import pyarrow.parquet as pq  # takes long to import

    folder = layout.artifact(manifest.kind, manifest.key) / "outputs" / "report"
    scores: dict[str, dict[str, list[float]]] = {}
    for row in pq.read_table(folder / "samples.parquet", columns=["model", "id", "family", "score"]).to_pylist():
        if row["score"] is not None and family in (None, row["family"]):
            value = row["score"] if threshold is None else float(row["score"] >= threshold - SLACK)
            scores.setdefault(row["model"], {}).setdefault(row["id"], []).append(value)
    return {model: {id: float(np.mean(values)) for id, values in rows.items()} for model, rows in scores.items()}


def pair_scores(scores: list[ReportScores], method: str, against: str) -> np.ndarray:
    """Return method − comparator per seed and problem that all have scores of, (S, P); (S, 1) without problems."""
    if not all(one.problems for one in scores):
        return np.array([[one.values[method] - one.values[against]] for one in scores])
    shared = set.intersection(*(set(one.problems[m]) for one in scores for m in (method, against)))
    if not shared:
        raise PlanError("the reports of the seeds have no problem in common")
    order = sorted(shared)
    return np.array([[one.problems[method][id] - one.problems[against][id] for id in order] for one in scores])
