"""New models at plan time: architectures that are language models, and folders that hold the tokenizers they name."""

from collections.abc import Iterator

from learning.models.architectures import find_new_model_problem
from learning.models.model_files import lacks_tokenizer
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PlanError, Problem
from schemas.recipe.load import Recipe
from schemas.stages.init import Init

TOKENIZER = "tokenizer.source"
"""Port of a tokenizer that is taken from a folder or a model."""


def find_new_model_problems(recipe: Recipe, layout: Layout) -> Iterator[Problem]:
    """Yield a problem per `init` stage whose architecture cannot be a policy, or whose tokenizer is not there."""
    for info in recipe.steps.values():
        stage = info.stage
        if isinstance(stage, Init) and stage.model is None and (text := find_new_model_problem(stage.config)):
            yield info.problem("config.model_type", text)
        for port in info.ports if isinstance(stage, Init) else ():
            if port.path != TOKENIZER or port.source is None or port.source.startswith("mlflow:"):
                continue
            try:
                folder = find_source(port.source, layout, recipe.folders).folder
            except PlanError:
                continue  # reported with the other sources
            if lacks_tokenizer(folder):
                advice = "name a folder that `tokenizer.save_pretrained` wrote, or a GGUF file"
                yield info.problem(port.path, f"{port.source}: no tokenizer there: tokenizer.json is missing", advice)
