"""What docs/tools.md says is so: its recipe is valid, its form is a call, its table has every tool."""

import re
from pathlib import Path

import yaml

from learning.environments.lookup_environment import build_environment
from schemas.recipe.load import load_recipe
from schemas.signatures import list_names
from schemas.use import EnvUse, ToolUse

PAGE = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
BLOCKS = dict(re.findall(r"^```yaml (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_its_recipe_is_valid(tmp_path):
    (tmp_path / "page.yaml").write_text(BLOCKS["tools"])
    recipe = load_recipe(tmp_path / "page.yaml")
    assert recipe.warnings == ()
    assert ("learning.tools.calls", "search") in recipe.code("policy")


def test_its_form_is_a_call():
    environment = build_environment(EnvUse.model_validate(yaml.safe_load(BLOCKS["form"])["env"]), {})
    (example,) = re.findall(r"here `(.*?)`:", PAGE)
    assert environment.begin({"id": "1"}, 0).step(example).observation == "2"


def test_its_table_has_every_tool():
    table = PAGE.partition("## Available tools")[2].partition("\n\nThe calculator")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == list_names(ToolUse)
