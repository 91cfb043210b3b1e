"""Settings that need an architecture which the model of a stage does not have, found at plan time."""

from flows.planning.adapter_check import find_model_config
from flows.planning.memory_models import complete_config
from learning.memory_model.expected_forward import expect_forward
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.errors import RecipeError, StepError
from schemas.plan import Plan
from schemas.recipe.load import Recipe

NEEDS = ("packing", "routing_replay")
"""Settings that only some architectures allow."""


def verify_architectures(recipe: Recipe, plan: Plan, layout: Layout) -> None:
    """Raise RecipeError, with the line, for settings that the architecture of a stage's model does not allow.

    The model is that of a source or of the stage at the beginning that defines it; steps with an artifact are skipped.
    """
    store, problems = Store(layout), []
    for step in plan.steps:
        if not any(step.settings.get(name) for name in NEEDS) or store.find(step.kind, step.key) is not None:
            continue
        if (config := find_model_config(step, plan, layout, recipe.folders)) is None:
            continue
        kind, forward = config.get("model_type"), expect_forward(config)
        if step.settings.get("packing") and forward != "forest":
            message = f"the forward pass of {kind} is {forward}, in which rows cannot be kept apart; leave it out"
            problems.append(recipe.problem(step.name, "packing", message))
        if step.settings.get("routing_replay") and not _has_experts(config):
            message = f"{kind} is dense: it has no experts whose choice could be recorded; leave it out"
            problems.append(recipe.problem(step.name, "routing_replay", message))
    if problems:
        raise RecipeError(problems)


def _has_experts(config: JsonObject) -> bool:
    """Return whether a configuration, completed by the defaults of its type, has experts."""
    try:
        return _names_experts(config) or _names_experts(complete_config(config))
    except StepError:  # what transformers refuses is not judged here
        return True


def _names_experts(config: JsonObject) -> bool:
    return any("expert" in key and value for key, value in (config.get("text_config") or config).items())
