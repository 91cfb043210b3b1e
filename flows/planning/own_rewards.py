"""A check before a run of the rewards that are the user's own code."""

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
    """Call each reward from the user's own code on the answers of two problems. Raise RecipeError if it fails.

    Rewards that need a model or another step's output are not called, nor are those whose problems have no answers.
    """
    if all(":" not in use.use for info in recipe.steps.values() for use in getattr(info.stage, "rewards", [])):
        return
    from flows.planning.reward_tests import find_reward_problems  # pyarrow takes 0.1 s, and few recipes need it

    if problems := find_reward_problems(recipe, layout):
        raise RecipeError(problems)
