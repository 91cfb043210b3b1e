"""Numbers that are joined from variables: `"${vars.seed}0${repeat.iteration}"` is a number where one is wanted."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = """name: rounds
description: "${{vars.seed}}0${{vars.seed}}"
vars: {{seed: 12, word: abc, digits: "7", share: 0.5, on: true}}
stages:
  base: {{kind: init}}
  lessons:
    kind: synthesize
    teacher: answer
    problems: [{{use: forms, split: train, size: "${{vars.seed}}0"}}]
  rounds:
    repeat:
      max: 2
      first: {{tuned: base}}
      stages:
        tuned: {{kind: sft, model: previous.tuned, data: lessons, seed: {seed}}}
"""


def load(folder, seed):
    (folder / "r.yaml").write_text(RECIPE.format(seed=seed))
    return load_recipe(folder / "r.yaml")


def test_seeds_of_rounds_are_joined_from_a_variable_and_the_iteration(tmp_path):
    recipe = load(tmp_path, '"${vars.seed}0${repeat.iteration}"')
    assert [recipe.seed(f"rounds-{i}-tuned") for i in (1, 2)] == [1201, 1202]
    assert recipe.settings("lessons")["problems"][0]["size"] == 120
    assert recipe.head.description == "12012", "where a text is wanted it stays one"


@pytest.mark.parametrize(
    "seed",
    [
        '"1${vars.word}"',
        '"1${vars.digits}"',
        '"1${vars.share}"',
        '"1${vars.on}"',
        '"12"',
        '"1_${vars.seed}"',
        '" ${vars.seed}"',
        '"-${vars.seed}"',
    ],
)
def test_other_texts_are_no_numbers(seed, tmp_path):
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, seed)
    (problem,) = caught.value.problems
    assert (problem.line, problem.path) == (15, "stages.rounds.repeat.stages.tuned.seed")
