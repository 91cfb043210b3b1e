"""Slots of evaluations: what is asked of a model, and what is measured of its answers and its weights."""

from schemas.use import Use


class MetricUse(Use):
    """A number from the scores of an evaluation."""

    home = "learning.evaluation.metrics"
    asks = frozenset({"correct_PN", "score_PN", "first_PN", "text_PN"})


class SolverUse(Use):
    """Answers the problems of an evaluation with several calls of the model; nothing is trained."""

    home = "learning.solvers.solvers"
    takes = ("rows", "ask")


class WeightDiffUse(Use):
    """A number from one tensor of two models."""

    home = "learning.merge.weight_geometry"
    takes = ("before", "after")
