"""The recipe of docs/async.md is valid, and so are the drives that its table names."""

import re
from pathlib import Path

import pytest
import yaml

from schemas.recipe.load import load_recipe

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/async.md").read_text()
RECIPE = re.search(r"^```yaml async\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
DRIVES = re.findall(r"^\| `(.+?)` \|", PAGE.partition("## What goes on")[0], re.MULTILINE)[1:]


@pytest.mark.parametrize("drive", DRIVES)
def test_the_page_names_drives_that_a_recipe_may_have(tmp_path, drive):
    text = yaml.safe_load(RECIPE)
    text["extends"] = str(ROOT / "recipes" / text["extends"])
    text["stages"]["policy"]["drive"] = yaml.safe_load(drive)
    (tmp_path / "page.yaml").write_text(yaml.safe_dump(text))
    assert load_recipe(tmp_path / "page.yaml").warnings == ()


def test_the_table_is_complete():
    assert [yaml.safe_load(d) if d[0] != "{" else yaml.safe_load(d)["use"] for d in DRIVES] == [
        "whole",
        "windowed",
        "overprovisioned",
        "periodic",
        "one_step_off",
        "streamed",
        "streamed",
    ]
