"""The recipe of docs/async.md is valid, and so are the rollout functions that its table names."""

import re
from pathlib import Path

import pytest
import yaml

from schemas.recipe.load import load_recipe

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/async.md").read_text()
RECIPE = re.search(r"^```yaml async\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
ROLLOUTS = re.findall(r"^\| `(.+?)` \|", PAGE.partition("## What goes on")[0], re.MULTILINE)[1:]


@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_the_page_names_rollouts_that_a_recipe_may_have(tmp_path, rollout):
    text = yaml.safe_load(RECIPE)
    text["extends"] = str(ROOT / "recipes" / text["extends"])
    text["stages"]["policy"]["rollout"] = yaml.safe_load(rollout)
    (tmp_path / "page.yaml").write_text(yaml.safe_dump(text))
    assert load_recipe(tmp_path / "page.yaml").warnings == ()


def test_the_table_is_complete():
    assert [yaml.safe_load(d) if d[0] != "{" else yaml.safe_load(d)["use"] for d in ROLLOUTS] == [
        "synchronous",
        "windowed",
        "overprovisioned",
        "periodic",
        "one_step_off",
        "streamed",
        "streamed",
    ]
