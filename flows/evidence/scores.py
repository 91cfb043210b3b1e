"""Scores of the models of a finished report, per problem where the metric is a mean over problems."""

from dataclasses import dataclass

import numpy as np

from flows.execution.results import read_scores
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.suggestions import suggest

ACCURACY = "accuracy"
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
    manifest: Manifest, metric: str, models: tuple[str, ...], threshold: float, layout: Layout
) -> ReportScores:
    """Return a metric (`accuracy`, `accuracy.chain_sum`, `pass_at_8`) of models. Raise PlanError if there is none.

    `threshold` is the least score of a correct sample, as in the report's settings.
    """
    name, _, family = metric.partition(".")
    rows = [row for row in read_scores(manifest) if row["metric"] == name and row["family"] == (family or "all")]
    values = {row["model"]: row["value"] for row in rows}
    missing = [model for model in models if model not in values]
    if missing:
        known = dict.fromkeys(f"{row['metric']}.{row['family']}" for row in read_scores(manifest))
        raise PlanError(f"the report has no `{metric}` of {', '.join(missing)}; {suggest(metric, known, 'metrics')}")
    problems = read_correct_shares(manifest, family, threshold, layout) if name == ACCURACY else {}
    return ReportScores({model: values[model] for model in models}, problems)


def read_correct_shares(
    manifest: Manifest, family: str, threshold: float, layout: Layout
) -> dict[str, dict[str, float]]:
    """Return the share of correct samples of every model on every problem, from the samples of a report."""
    import pyarrow.parquet as pq  # takes long to import

    folder = layout.artifact(manifest.kind, manifest.key) / "outputs" / "report"
    correct: dict[str, dict[str, list[bool]]] = {}
    for row in pq.read_table(folder / "samples.parquet", columns=["model", "id", "family", "score"]).to_pylist():
        if row["score"] is not None and family in ("", row["family"]):
            is_correct = bool(row["score"] >= threshold - SLACK)
            correct.setdefault(row["model"], {}).setdefault(row["id"], []).append(is_correct)
    return {model: {id: float(np.mean(flags)) for id, flags in rows.items()} for model, rows in correct.items()}


def pair_scores(scores: list[ReportScores], method: str, against: str) -> np.ndarray:
    """Return method − comparator per seed and problem that all have scores of, (S, P); (S, 1) without problems."""
    if not all(one.problems for one in scores):
        return np.array([[one.values[method] - one.values[against]] for one in scores])
    shared = set.intersection(*(set(one.problems[m]) for one in scores for m in (method, against)))
    if not shared:
        raise PlanError("the reports of the seeds have no problem in common")
    order = sorted(shared)
    return np.array([[one.problems[method][id] - one.problems[against][id] for id in order] for one in scores])
