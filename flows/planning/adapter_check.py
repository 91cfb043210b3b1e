"""The modules that adapters name, at plan time: as far as a stage's model is known, they must be modules of it."""

from pathlib import Path

from flows.planning.model_config import read_model_config
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.adapter_base import find_plain_base
from schemas.base import JsonObject
from schemas.errors import RecipeError, StepError
from schemas.plan import Plan, Step
from schemas.recipe.load import Recipe
from schemas.references import MODEL_TYPES
from schemas.stages.union import traits_of
from schemas.training import ALL_LINEAR, LoRA

OTHER_CLASS = "has linear layers of a class that bitsandbytes does not quantise"
READS_WEIGHTS = "reads the weights of linear layers itself, which quantised layers do not allow"
UNQUANTISABLE = {
    **dict.fromkeys(("falcon", "gpt2"), OTHER_CLASS),
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba", "rwkv"), READS_WEIGHTS),
}
"""Model types without weights in 4 bits; a step checks other models when it loads them."""


def verify_adapters(recipe: Recipe, plan: Plan, layout: Layout) -> None:
    """Raise RecipeError, with the line, for names of modules that the model of a stage does not have.

    The model is that of a source or of the stage at the beginning that defines it; steps with an artifact are skipped.
    """
    store, problems = Store(layout), []
    for step in plan.steps:
        settings = step.settings
        if not settings.get("use_peft") or store.find(step.kind, step.key) is not None:
            continue
        names_nothing = settings["lora_target_modules"] == ALL_LINEAR and not settings["modules_to_save"]
        if names_nothing and not settings["load_in_4bit"]:
            continue
        if (config := find_model_config(step, plan, layout, recipe.folders)) is None:
            continue
        kind = str(config.get("model_type"))
        if settings["load_in_4bit"] and (obstacle := UNQUANTISABLE.get(kind)):
            problems.append(recipe.problem(step.name, "load_in_4bit", f"{kind} {obstacle}; leave it out"))
        if names_nothing:
            continue
        from learning.models.adapter_targets import TargetError, check_targets  # torch comes with it

        options = LoRA.model_validate({name: settings[name] for name in LoRA.model_fields})
        try:
            check_targets(config, options, classifier=step.kind == "reward_model")
        except TargetError as error:
            problems.append(recipe.problem(step.name, error.option, str(error)))
    if problems:
        raise RecipeError(problems)


def find_model_config(step: Step, plan: Plan, layout: Layout, folders: tuple[Path, ...]) -> JsonObject | None:
    """Return the configuration of the model that a step receives; None if it is not known before the run."""
    given = next((i for i in step.inputs if i.type in MODEL_TYPES), None)
    if given is None:
        return None
    if given.source is not None:
        folder = find_source(given.source, layout, folders).folder
        base = find_plain_base(folder)
        try:
            return read_model_config(base)
        except (OSError, ValueError, StepError):
            return None
    maker = plan.step(given.steps[0])
    if traits_of(maker.kind).defines_model and not maker.settings.get("model"):
        return maker.settings.get("config")
    return find_model_config(maker, plan, layout, folders)
