"""Every shipped recipe, and every profile of it, validates at once and compiles."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.planning.compile import compile_recipe
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from schemas.source.extend import read_recipe
from schemas.stages.init import Init

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
CASES = [
    pytest.param(path, profile, id=f"{path.stem}-{profile or 'plain'}")
    for path in RECIPES
    for profile in (None, *((read_recipe(path, None, ()).plain().get("profiles")) or {}))
]
OTHERS = [
    pytest.param(path, profile, id=f"{path.parent.name}-{path.stem}-{profile or 'plain'}")
    for path in sorted((ROOT / "recipes").glob("*/*.yaml"))
    if path.parent.name in ("papers", "outcomes", "bases")
    for profile in (None, *((read_recipe(path, None, ()).plain().get("profiles")) or {}))
    if profile != "own"  # needs the user's model and data
]
"""Recipes of papers, of their outcomes, and those that they extend."""
CHILD = """
import json, sys
from typer.testing import CliRunner
from flows.cli import app
records = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, ["validate", *words])
    heavy = [m for m in ("torch", "ray", "prefect", "mlflow", "transformers") if m in sys.modules]
    records.append({"words": words, "code": done.exit_code, "heavy": heavy, "said": done.output})
print(json.dumps(records))
"""
"""One process for all: the first recipe that imports something heavy is named."""


def with_model(path, folder):
    """Return a recipe beside a stand-in for the model that `make real` installs, if it names one."""
    if path.stem != "smollm2":
        return path
    for name in ("rehearsal", "held_out", "development"):
        shutil.copytree(ROOT / "data" / name, folder / "data" / name)
    (folder / "recipes").mkdir()
    model = folder / "recipes" / yaml.safe_load(path.read_text())["vars"]["base"].removeprefix("path:")
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))  # version 3, no tensors and no settings
    return shutil.copy(path, folder / "recipes")


@pytest.mark.parametrize(("path", "profile"), CASES)
def test_a_shipped_recipe_compiles_into_a_plan(path, profile, tmp_path):
    plan = compile_recipe(load_recipe(with_model(path, tmp_path), profile=profile), Layout(tmp_path))
    assert {s.kind for s in plan.steps} <= {p.stem for p in (ROOT / "tasks").glob("*.py")}
    done = set()
    for step in plan.steps:
        assert set(step.needs) <= done, step.name
        done.add(step.name)


@pytest.mark.parametrize(("path", "profile"), OTHERS)
def test_every_profile_of_the_recipes_of_papers_validates(path, profile):
    assert load_recipe(path, profile=profile).steps


def test_validate_imports_nothing_heavy(tmp_path):
    cases = [(case.values[0], case.values[1], tmp_path / str(i)) for i, case in enumerate(CASES)]
    for _, _, folder in cases:
        folder.mkdir()
    words = [[str(with_model(path, at)), *(["--profile", name] if name else [])] for path, name, at in cases]
    child = [sys.executable, "-c", CHILD, json.dumps(words)]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=True)
    records = json.loads(done.stdout)
    assert len(records) == len(CASES)
    for record in records:
        assert (record["code"], record["heavy"]) == (0, []), record


def test_the_quickstart_contains_every_kind_of_its_job():
    recipe = load_recipe(ROOT / "recipes/quickstart.yaml")
    kinds = [stage.kind for stage in recipe.stages.values()]
    assert {"init", "synthesize", "curate", "sft", "reward_model", "merge", "evaluate"} <= set(kinds)
    assert kinds.count("rl") >= 2


def test_a_model_without_a_configuration_is_that_of_the_quickstart():
    quickstart = yaml.safe_load((ROOT / "recipes/quickstart.yaml").read_text())
    assert Init(kind="init").config == quickstart["stages"]["base"]["config"]


def test_smollm2_trains_on_no_text_that_it_is_evaluated_on():
    files = (
        "rehearsal/prompts",
        *(f"{part}/{name}" for part in ("held_out", "development") for name in ("questions", "prose")),
    )
    lines = [line for name in files for line in (ROOT / f"data/{name}.jsonl").read_text().splitlines()]
    texts = [" ".join(json.loads(line)["question"].casefold().split()) for line in lines]
    assert len(set(texts)) == len(texts) > 300
