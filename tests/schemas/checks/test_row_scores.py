"""Scores of a curation: rewards that need a policy's samples are refused at their place."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = """name: tried
stages:
  base: {kind: init}
  rows: {kind: synthesize, problems: [{use: reasoning_gym, family: gcd, size: 9, split: train}], teacher: answer}
  clean:
    kind: curate
    data: rows
    scores:
      - use: reward
        of: REWARD
"""


def load(tmp_path, reward):
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("REWARD", reward))
    return load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("reward", "needs"),
    [
        ("judges.own", "sampler"),
        ("{use: composite.gated, of: judges.own, by: answers.exact}", "sampler"),
        ("likelihood.answer", "samples, sampler"),
    ],
)
def test_rewards_of_a_policys_samples_are_refused(tmp_path, reward, needs):
    with pytest.raises(RecipeError, match=f"recipe.yaml:10:.*needs {needs}, and rows under curation have no samples"):
        load(tmp_path, reward)


def test_rewards_of_texts_are_bound_with_their_models(tmp_path):
    recipe = load(tmp_path, "{use: judges.model, judge: base}")
    assert "scores.0.of.judge" in {port.path for port in recipe.ports("clean")}
    assert ("learning.curation.score_limits", "drop_by_scores") in recipe.code("clean")
    assert ("learning.curation.masking", "mask_rows") not in recipe.code("clean")
    load(tmp_path, "answers.exact")
