"""Outcomes of control: method and comparator differ in what is compared and in nothing else, at equal cost."""

from pathlib import Path

import pytest

from schemas.recipe.load import load_recipe

OUTCOMES = Path(__file__).parents[2] / "recipes/outcomes"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("demonstration-regularized-rl", {"model", "loss_terms", "environment_steps"}),
        ("offline-data-pcg", {"model"}),
        ("model-based-generalization", {"loss"}),
    ],
)
def test_the_arms_differ_in_the_method_alone(row, expected):
    recipe = load_recipe(OUTCOMES / f"{row}.yaml")
    method, against = (
        recipe.stages[recipe.stages["report"].models[name]].model_dump(exclude_unset=True)
        for name in (recipe.head.outcome.method, recipe.head.outcome.against)
    )
    assert {key for key in method.keys() | against.keys() if method.get(key) != against.get(key)} == expected


def test_learning_without_demonstrations_takes_as_many_steps_as_they_have():
    recipe = load_recipe(OUTCOMES / "demonstration-regularized-rl.yaml")
    steps = {name: recipe.stages[name].environment_steps for name in ("plain", "regularised")}
    demonstrations = recipe.stages["demonstrations"]
    assert steps["plain"] - steps["regularised"] >= demonstrations.episodes * demonstrations.env.options["horizon"]
    assert demonstrations.env.options == demonstrations.policy.options


def test_imitation_sees_the_interventions_of_the_same_expert():
    stages = load_recipe(OUTCOMES / "rlif.yaml").stages
    method, against = stages["rlif"], stages["dagger"]
    same = ("env", "exploration", "environment_steps", "learning_starts", "networks", "seed")
    assert {key for key in same if getattr(method, key) != getattr(against, key)} == set()
    expert = method.exploration.options["expert"]
    assert expert == against.relabel.options["expert"] == stages["demonstrations"].policy.model_dump()
    assert method.relabel.use.endswith("penalise_onsets")
