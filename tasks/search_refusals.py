"""What a search refuses to choose by, where only a library's task files say it."""

from learning.evaluation.held_out_problems import refuse_test_tasks
from schemas.stages.evaluate import Evaluate
from tasks.context import Context
from tasks.evaluate import load_scored_tasks


def refuse_test_splits(stage: Evaluate, context: Context) -> None:
    """Raise StepError for tasks of lm-eval that evaluate a test split."""
    refuse_test_tasks(load_scored_tasks(stage, context))
