"""Configurations of each tool, written from its documentation: recipes that validate, reports that lose no key."""

import json
import random
import shutil
from pathlib import Path

import pytest

from flows.planning.data_sources import find_source_problems
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.importers.common.files import read_config
from schemas.importers.common.leaves import flatten
from schemas.importers.convert import TOOLS, import_config
from schemas.recipe.load import load_recipe

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(f"{f.parent.name}/{f.name}" for f in FIXTURES.glob("*/*") if f.parent.name in TOOLS)
LM_EVAL = "lm-eval"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The fixtures' data and rewards, which configurations name by relative paths, as in their own projects."""
    for name in ("data", "my_rewards"):
        shutil.copytree(FIXTURES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(case, folder, **options):
    config = folder / Path(case).name
    shutil.copyfile(FIXTURES / case, config)
    made = import_config([config], None, folder / "recipe.yaml", **options)
    (folder / "recipe.yaml").write_text(made.text)
    return made


def test_each_tool_has_enough_cases():
    counts = {name: sum(case.startswith(f"{name}/") for case in CASES) for name in TOOLS}
    few = ("mergekit", LM_EVAL, "llama-factory-v1")
    assert all(count >= (3 if name in few else 6) for name, count in counts.items()), counts


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_becomes_a_recipe_that_validates(case, folder):
    made = imported(case, folder)
    assert made.tool.name == case.partition("/")[0]
    recipe = load_recipe(folder / "recipe.yaml")
    if not any(
        source.from_.scheme == "hub" for stage in recipe.stages.values() for source in getattr(stage, "sources", [])
    ):
        assert not list(find_source_problems(recipe, Layout(folder)))
    leaves = [key for key, _ in flatten(read_config(folder / Path(case).name).tree)]
    assert sorted(entry.key for entry in made.entries if entry.given) == sorted(leaves)
    assert all(entry.note for entry in made.entries)
    if "misspelt" in case:
        assert any(entry.status == "unknown" and "did you mean" in entry.note for entry in made.entries)
    else:
        assert not [entry.key for entry in made.entries if entry.status == "unknown"]


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_no_key_vanishes_whatever_is_added(name, folder):
    """Random maps, lists and words, also at names that the importer reads, are all in the report."""
    case = next(case for case in CASES if case.startswith(f"{name}/") and case.endswith(".yaml"))
    rng = random.Random(name)
    config = read_config(FIXTURES / case)
    base = dict(config.tree)
    words = [key.rpartition(".")[2] for key in sorted(TOOLS[name].known)] + ["odd", "a.b", "x-y", "9", "dataset"]

    def value(depth):
        kind = rng.randrange(7 if depth < 3 else 4)
        if kind < 4:
            return (rng.random(), rng.choice(words), None, [1, "two"])[kind]
        if kind == 4:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        return {rng.choice(words): value(depth + 1) for _ in range(rng.randrange(4))}

    imported_once = 0
    for _ in range(8):
        tree = {**base, **{rng.choice(words).replace("*", "any"): value(0) for _ in range(6)}}
        (folder / "config.json").write_text(json.dumps(tree))
        try:
            made = import_config([folder / "config.json"], name, folder / "recipe.yaml")
        except RecipeError:  # a value without which there is no recipe: no model, no data
            continue
        imported_once += 1
        given = [entry.key for entry in made.entries if entry.given]
        assert len(given) == len(set(given)) == len(list(flatten(read_config(folder / "config.json").tree)))
    assert imported_once


@pytest.mark.parametrize("case", CASES)
def test_a_key_that_the_recipe_names_is_not_called_harmless(case, folder):
    made = imported(case, folder)
    statuses = {entry.key: entry.status for entry in made.entries}
    named = [line.rpartition("  # ")[2] for line in made.text.splitlines() if "  # " in line]
    assert not [key for key in named if statuses.get(key) in ("harmless", "unknown")]
