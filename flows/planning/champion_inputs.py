"""`against: champion`: the champion that a gate compares with becomes an input of the evaluation."""

from typing import TypedDict

from lineage.layout import Layout
from lineage.registry.champions import read_standing
from lineage.sources.resolve import find_source
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.plan import Input
from schemas.recipe.load import Recipe


class GateSettings(TypedDict):
    """The settings of a gate that decide what a plan does with it."""

    metric: str
    on_fail: str
    against: str | None
    champion: str | None
    floating: bool


def add_champions(
    recipe: Recipe, settings: JsonObject, inputs: tuple[Input, ...], layout: Layout
) -> tuple[JsonObject, tuple[Input, ...]]:
    """Return settings and inputs of an evaluation with the champions that its gates name.

    Without a champion they are unchanged, and the gate reports it. Raise PlanError if the audit log does not verify,
    MLflow does not answer or names a champion that no recorded move made, or the champion is not in this checkout.
    """
    for index, gate in enumerate(settings["gate"]):
        if gate["against"] != "champion" or "champion" in settings["models"]:
            continue
        model = champion_name(recipe, gate)
        here = read_standing(layout, model)
        champion = here.champion
        if champion is None and here.alarms:
            raise PlanError(f"a gate compares with the champion of {model}, and {here.alarms[0]}")
        if champion is None:
            continue
        source, word = f"mlflow:{champion.name}@{champion.version}", "champion"
        digest = find_source(source, layout, recipe.folders).digest
        if settings["against"].get(word, source) != source:
            word = f"champion of {model}"
        if word not in settings["against"]:
            inputs = (*inputs, Input(port=f"against.{word}", source=source, digest=digest, type="policy"))
        gates = [g | {"against": word} if i == index else g for i, g in enumerate(settings["gate"])]
        settings = settings | {"against": settings["against"] | {word: source}, "gate": gates}
    return settings, inputs


def champion_name(recipe: Recipe, gate: GateSettings) -> str:
    """Return the registered model that a gate names, else the one the recipe promotes, else the recipe's name."""
    return str(gate["champion"] or (recipe.promotion.name if recipe.promotion else recipe.name))
