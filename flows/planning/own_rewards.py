"""Checks before a run of rewards that are the user's own code, and of the tests that a stage has for its rewards."""

from flows.planning.called_rewards import is_called
from lineage.layout import Layout
from schemas.errors import Problem, RecipeError
from schemas.recipe.load import Recipe


def find_own_reward_problems(recipe: Recipe, layout: Layout) -> list[Problem]:
    """Return the problems for which `verify_own_rewards` raises RecipeError."""
    try:
        verify_own_rewards(recipe, layout)
    except RecipeError as error:
        return list(error.problems)
    return []


def verify_own_rewards(recipe: Recipe, layout: Layout) -> None:
    """Call each reward from the user's own code on the answers of two problems, and score the `tests` of each stage.

    Raise RecipeError for a reward that fails, and for a test that does not hold.

    Rewards that need a model or another step's output are not called, nor are those whose problems have no answers.
    """
    stages = [info.stage for info in recipe.steps.values()]
    if not any(is_called(use) for stage in stages for use in getattr(stage, "rewards", [])) and not any(
        getattr(stage, "tests", []) for stage in stages
    ):
        return
    # pyarrow takes 0.1 s, and few recipes need it
    from flows.planning.reward_tests import find_failed_tests, find_reward_problems

    if problems := [*find_reward_problems(recipe, layout), *find_failed_tests(recipe)]:
        raise RecipeError(problems)
