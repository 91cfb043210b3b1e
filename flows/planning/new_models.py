"""New models at plan time: architectures that are language models, by the installed transformers without its import."""

from collections.abc import Iterator

from learning.models.architectures import find_new_model_problem
from schemas.errors import Problem
from schemas.recipe.load import Recipe
from schemas.stages.init import Init


def find_new_model_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem per `init` stage whose architecture cannot be a policy."""
    for info in recipe.steps.values():
        stage = info.stage
        if isinstance(stage, Init) and stage.model is None and (text := find_new_model_problem(stage.config)):
            yield info.problem("config.model_type", text)
