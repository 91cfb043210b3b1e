import pytest

from learning.reasoning_gym.families import families
from schemas.checks.families import list_families
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = """name: r
stages:
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_summ, size: 9, split: train}]
"""


def test_the_names_in_the_source_text_are_those_of_the_library():
    assert list_families() == tuple(sorted(families()))


def test_an_unknown_family_is_an_error_at_its_place(tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError, match=r"r.yaml:6:45: .*no family `chain_summ`\s+did you mean `chain_sum`\?"):
        load_recipe(tmp_path / "r.yaml")
