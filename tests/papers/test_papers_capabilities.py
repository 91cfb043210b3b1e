"""What a row says its paper has stands in the recipe, or the header says that it is not here."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from schemas.recipe.load import load_recipe

FOLDER = Path(__file__).parent
RECIPES = FOLDER.parents[1] / "recipes" / "papers"
ROWS = yaml.safe_load((FOLDER / "capabilities.yaml").read_text(encoding="utf-8"))


@cache
def stages(row, profile):
    return load_recipe(RECIPES / f"{row}.yaml", profile=profile).stages


def read_header(row):
    """The header of a recipe as one line of text."""
    lines = (RECIPES / f"{row}.yaml").read_text(encoding="utf-8").splitlines()
    return re.sub(r"\s+", " ", " ".join(line[1:] for line in lines if line.startswith("#")))


def find_problem(row, where):
    """What is wrong with a place in a recipe; empty if the capability stands there."""
    kind, _, rest = where.partition(": ")
    if kind == "not here":
        return "" if rest in read_header(row) else f"the header does not say `{rest}`"
    place, _, claim = where.partition(": ")
    words = place.split(" ")
    made = stages(row, None if words[0] == "plain" else words[0] if len(words) == 2 else "tiny")
    if words[-1] not in made:
        return f"no step {words[-1]}"
    key, _, text = claim.partition(": ")
    if not key:
        return ""
    value = made[words[-1]].model_dump(mode="json")[key]
    written = value if isinstance(value, str) else json.dumps(value)
    return "" if text in written else f"{key} is {written}"


@pytest.mark.parametrize("row", sorted(ROWS))
def test_every_capability_stands_in_the_recipe_or_under_what_is_not_here(row):
    assert {name: problem for name, where in ROWS[row].items() if (problem := find_problem(row, where))} == {}


def test_every_row_says_what_it_has():
    assert set(ROWS) == {path.stem for path in RECIPES.glob("*.yaml")}
    assert all(len(names) >= 3 for names in ROWS.values())


def test_a_capability_that_is_lost_is_found():
    assert find_problem("april", "grpo: rollout: streamed").startswith("rollout is")
    assert find_problem("april", "grp: rollout: overprovisioned") == "no step grp"
    assert find_problem("april", "not here: images").startswith("the header")
