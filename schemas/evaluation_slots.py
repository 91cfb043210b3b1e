"""Slots of evaluations: solvers of problems, metrics of answers and of weights."""

from schemas.use import ProblemsUse, Use

ANSWER_LOGPROBS = "answer_logprob_P"
"""Mean log-probability per token of each problem's answer: computed only if a metric requests it."""


REPORTED = "reported"
"""Values per problem that a library's tasks report, by metric: `{name: (P,)}`."""
TRAINED_ON = "trained_on"
"""Inputs `trained_on.<model>.<number>` of an evaluation: rows that a model was trained on. Compilation adds them."""
SCORED_TASKS = "lm_eval"
"""Name of the tasks that a library prompts and scores."""


class MetricUse(Use):
    """A number from the scores of an evaluation."""

    home = ("learning.evaluation.metrics",)
    asks = frozenset({"correct_PN", "score_PN", "first_PN", "text_PN", ANSWER_LOGPROBS, REPORTED})


class EvaluationTaskUse(ProblemsUse):
    """Generates held-out problems, or evaluates on tasks that a library prompts and scores."""

    home = (*ProblemsUse.home, "learning.evaluation.lm_eval_tasks")
    foreign = "a task of lm-eval is written {{use: lm_eval, tasks: [{name}]}}"


class SolverUse(Use):
    """Answers the problems of an evaluation with several calls of the model; nothing is trained."""

    home = (
        "learning.solvers.solvers",
        "learning.solvers.state_search",
        "learning.solvers.planned_search",
        "learning.solvers.question_graph",
    )
    takes = ("rows", "ask")


class WeightDiffUse(Use):
    """A number from one tensor of two models."""

    home = ("learning.merge.weight_geometry",)
    takes = ("before", "after")
