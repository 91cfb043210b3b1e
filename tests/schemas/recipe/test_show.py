"""`posttrain show`: the same steps and keys, said with all keys or with those that differ from defaults."""

import pytest

from flows.planning.compile import compile_recipe
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.package import ROOT
from schemas.recipe.load import load_recipe
from schemas.recipe.show import show_full, show_minimal

RECIPES = ["chats", "quickstart", "distill"]


def keys(path, tmp_path):
    plan = compile_recipe(load_recipe(path, home=ROOT / "recipes"), Layout(tmp_path))
    return [step.key for step in plan.steps]


@pytest.mark.parametrize("name", RECIPES)
def test_either_form_gives_the_same_keys(name, tmp_path):
    source = ROOT / f"recipes/{name}.yaml"
    recipe = load_recipe(source)
    texts = show_full(recipe), show_minimal(recipe)
    assert len(texts[1]) < 0.6 * len(texts[0])
    for text in texts:
        (tmp_path / "shown.yaml").write_text(text)
        assert keys(tmp_path / "shown.yaml", tmp_path) == keys(source, tmp_path)


def test_defaults_are_left_out_and_text_is_not_substituted_again(tmp_path):
    (tmp_path / "r.yaml").write_text("""
vars: {rate: 1e-4}
stages:
  base: {kind: init, description: "costs $${money}"}
  sft: {kind: sft, model: base, data: path:x.jsonl, learning_rate: "${vars.rate}", weight_decay: 0.0, max_steps: 3}
""")
    text = show_minimal(load_recipe(tmp_path / "r.yaml"))
    assert "costs $${money}" in text
    assert "weight_decay" not in text
    assert "learning_rate: 0.0001" in text
    (tmp_path / "again.yaml").write_text(text)
    assert load_recipe(tmp_path / "again.yaml").stages["base"].description == "costs ${money}"


def test_a_matrix_is_refused_by_name(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  base: {kind: init, matrix: {size: [64, 128]}, max_length: "${matrix.size}"}
""")
    with pytest.raises(RecipeError, match="from a loop or a matrix"):
        show_full(load_recipe(tmp_path / "r.yaml"))
