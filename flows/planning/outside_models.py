"""Models from outside at plan time: whole checkpoints, classifiers with one label, adapters that can be merged."""

from collections.abc import Iterator
from pathlib import Path

from flows.planning.checkpoint_files import find_damaged_file, lacks_chat_template
from flows.planning.data_sources import read_outside_rows
from learning.models.model_files import (
    ADAPTER_CONFIG,
    NO_SCALE,
    REWARD_FILE,
    find_adapter_problem,
    find_head_problem,
    find_policy_problem,
    find_reward_model_problem,
)
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.chat import Chat
from schemas.errors import Problem, RecipeError
from schemas.recipe.load import Recipe
from schemas.references import POLICY_TYPES
from schemas.source.tree import join_path
from schemas.stages.data import Data
from schemas.stages.rl import Rl
from schemas.steps.step_info import Port, StepInfo

REGISTRY = "mlflow:"
"""Scheme of the models that only a plan resolves."""


def verify_outside_models(recipe: Recipe, layout: Layout) -> None:
    """Raise RecipeError for sources that are not what a port takes, and for a scale that a source does not state."""
    if problems := [
        problem for info, port, folder in _list_models(recipe, layout) for problem in _check(info, port, folder)
    ]:
        raise RecipeError(problems)


def find_outside_model_problems(recipe: Recipe, layout: Layout) -> list[Problem]:
    """Return the problems of `verify_outside_models`, and those of checkpoints whose files are missing or unreadable.

    Models of the registry are left out: MLflow takes seconds to import.
    """
    problems: list[Problem] = []
    for info, port, folder in _list_models(recipe, layout, REGISTRY):
        problems += _check(info, port, folder)
        if port.type != "reward_model" and (
            text := find_policy_problem(folder, not info.stage.defines_model) or find_damaged_file(folder)
        ):
            problems.append(info.problem(port.path, f"{port.source}: {text}"))
        elif port.type != "reward_model" and _needs_chat_template(recipe, layout, info) and lacks_chat_template(folder):
            advice = "give one: `chat_template: path:chat.jinja`; or train on plain text (a column `text`)"
            problems.append(info.problem(port.path, f"{port.source}: its tokenizer has no chat template", advice))
    return list({(p.file, p.line, p.column, p.message): p for p in problems}.values())


def _needs_chat_template(recipe: Recipe, layout: Layout, info: StepInfo) -> bool:
    """Return whether a step certainly writes conversations with the model's own template."""
    stage = info.stage
    if not isinstance(stage, Chat) or stage.chat_template is not None:
        return False
    if isinstance(stage, Rl):
        return True
    steps = [name for port in info.ports if port.path in ("data", "prompts") for name in port.steps]
    rows = [
        row
        for name in steps
        if isinstance(recipe.stages[name], Data)
        for row in read_outside_rows(recipe, layout, name, 1)
    ]
    return any(row["prompt"] for row in rows)


def _list_models(recipe: Recipe, layout: Layout, skipped: str | None = None) -> Iterator[tuple[StepInfo, Port, Path]]:
    """Yield step, port and folder of every model from outside, except those of a scheme."""
    for info in recipe.steps.values():
        for port in info.ports:
            if port.source is None or port.type not in ("reward_model", *POLICY_TYPES):
                continue
            if skipped is None or not port.source.startswith(skipped):
                yield info, port, find_source(port.source, layout, recipe.folders).folder


def _check(info: StepInfo, port: Port, folder: Path) -> Iterator[Problem]:
    if port.type != "reward_model":
        is_adapter = (folder / ADAPTER_CONFIG).is_file()
        if text := find_adapter_problem(folder) if is_adapter else find_head_problem(folder):
            yield info.problem(port.path, f"{port.source}: {text}")
        return
    if text := find_reward_model_problem(folder):
        yield info.problem(port.path, f"{port.source}: {text}")
        return
    owner = port.path.rpartition(".")[0]
    values = next((slot.values for slot in info.slots if slot.path == owner), {})
    if values.get("normalise", "none") != "none" and not (folder / REWARD_FILE).is_file():
        yield info.problem(join_path(owner, "normalise"), f"{port.source}: {NO_SCALE}")
