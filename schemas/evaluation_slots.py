"""Slots of evaluations: solvers of problems, metrics of answers and of weights."""

from schemas.use import Use

ANSWER_LOGPROBS = "answer_logprob_P"
"""Mean log-probability per token of each problem's answer: computed only if a metric requests it."""


class MetricUse(Use):
    """A number from the scores of an evaluation."""

    home = ("learning.evaluation.metrics",)
    asks = frozenset({"correct_PN", "score_PN", "first_PN", "text_PN", ANSWER_LOGPROBS})


class SolverUse(Use):
    """Answers the problems of an evaluation with several calls of the model; nothing is trained."""

    home = ("learning.solvers.solvers",)
    takes = ("rows", "ask")


class WeightDiffUse(Use):
    """A number from one tensor of two models."""

    home = ("learning.merge.weight_geometry",)
    takes = ("before", "after")
