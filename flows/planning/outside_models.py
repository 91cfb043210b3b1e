"""Models from outside at plan time: classifiers with one label, and adapters that can be merged."""

from collections.abc import Iterator
from pathlib import Path

from learning.models.model_files import (
    ADAPTER_CONFIG,
    NO_SCALE,
    REWARD_FILE,
    find_adapter_problem,
    find_reward_model_problem,
)
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import Problem, RecipeError
from schemas.recipe.load import Recipe
from schemas.references import POLICY_TYPES
from schemas.source.tree import join_path
from schemas.steps.step_info import Port, StepInfo


def verify_outside_models(recipe: Recipe, layout: Layout) -> None:
    """Raise RecipeError for sources that are not what a port takes, and for a scale that a source does not state."""
    problems = [
        problem
        for info in recipe.steps.values()
        for port in info.ports
        if port.source is not None and port.type in ("reward_model", *POLICY_TYPES)
        for problem in _check(info, port, find_source(port.source, layout, recipe.folders).folder)
    ]
    if problems:
        raise RecipeError(problems)


def _check(info: StepInfo, port: Port, folder: Path) -> Iterator[Problem]:
    if port.type != "reward_model":
        if (folder / ADAPTER_CONFIG).is_file() and (text := find_adapter_problem(folder)):
            yield info.problem(port.path, f"{port.source}: {text}")
        return
    if text := find_reward_model_problem(folder):
        yield info.problem(port.path, f"{port.source}: {text}")
        return
    owner = port.path.rpartition(".")[0]
    values = next((slot.values for slot in info.slots if slot.path == owner), {})
    if values.get("normalise", "none") != "none" and not (folder / REWARD_FILE).is_file():
        yield info.problem(join_path(owner, "normalise"), f"{port.source}: {NO_SCALE}")
