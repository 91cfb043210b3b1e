"""`against: champion`: the model that MLflow's alias names becomes an input of the evaluation, pinned."""

from typing import Any

from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PlanError
from schemas.plan import Input
from schemas.recipe.load import Recipe


def add_champions(
    recipe: Recipe, settings: dict[str, Any], inputs: tuple[Input, ...], layout: Layout
) -> tuple[dict[str, Any], tuple[Input, ...]]:
    """Settings and inputs of an evaluation with the champions that its gates ask for.

    Where there is none yet they stay as they are, and the gate says so. Raises PlanError when the audit log does not
    hold, MLflow cannot be asked or names a champion that no known move made, or the champion is not in this checkout.
    """
    from lineage.registry.champions import read_standing

    for index, gate in enumerate(settings["gate"]):
        if gate["against"] != "champion" or "champion" in settings["models"]:
            continue
        model = champion_name(recipe, gate)
        here = read_standing(layout, model)
        found = here.champion
        if found is None and here.alarms:
            raise PlanError(f"a gate compares with the champion of {model}, and {here.alarms[0]}")
        if found is None:
            continue
        source, word = f"mlflow:{found.name}@{found.version}", "champion"
        digest = find_source(source, layout, recipe.folders).digest
        if settings["against"].get(word, source) != source:
            word = f"champion of {model}"
        if word not in settings["against"]:
            inputs = (*inputs, Input(port=f"against.{word}", source=source, digest=digest, type="policy"))
        gates = [g | {"against": word} if i == index else g for i, g in enumerate(settings["gate"])]
        settings = settings | {"against": settings["against"] | {word: source}, "gate": gates}
    return settings, inputs


def champion_name(recipe: Recipe, gate: dict[str, Any]) -> str:
    """The registered model whose champion a gate means: as it says, as the recipe promotes, else the recipe's name."""
    return str(gate["champion"] or (recipe.promotion.name if recipe.promotion else recipe.name))
