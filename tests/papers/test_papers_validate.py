"""Every recipe of a paper validates in both profiles and compiles into a plan; no torch is needed for it."""

from pathlib import Path

import pytest

from flows.planning.compile import compile_recipe
from lineage.layout import Layout
from schemas.pages.papers_page import read_title
from schemas.recipe.load import load_recipe
from schemas.training import Training

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes" / "papers").glob("*.yaml"))


@pytest.mark.parametrize("profile", ["tiny", "full"])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_of_a_paper_compiles_into_a_plan(path, profile, tmp_path):
    recipe = load_recipe(path, profile=profile)
    plan = compile_recipe(recipe, Layout(tmp_path))
    assert recipe.name == path.stem
    assert "paper" in recipe.head.tags
    assert {step.kind for step in plan.steps} & {"evaluate", "evaluate_control"}
    trained = {name: stage for name, stage in recipe.stages.items() if isinstance(stage, Training)}
    wanted = (1.0, "bfloat16") if profile == "full" else (0.0, "float32")
    assert {n: (gpus(s.resources), s.dtype) for n, s in trained.items()} == dict.fromkeys(trained, wanted)


def gpus(resources):
    """GPUs of each process that trains."""
    return resources.num_gpus if resources.train is None else resources.train.num_gpus


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_paper_has_its_title_and_its_proof(path):
    text = path.read_text(encoding="utf-8")
    assert len(read_title(path)) > 10
    assert f"posttrain run recipes/papers/{path.name}" in text
    assert (ROOT / "tests" / "papers" / f"test_paper_{path.stem.replace('-', '_')}.py").is_file()
