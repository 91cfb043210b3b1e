"""The recipes of docs/rl.md run from nothing to the end, and go on from where they were killed to the same bits."""

import re

import pytest
import yaml

import tasks.rl
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from tests.flows.checkout import REPOSITORY

BLOCKS = dict(
    re.findall(r"^```yaml (\w+)\n(.*?)^```$", (REPOSITORY / "docs/rl.md").read_text(), re.MULTILINE | re.DOTALL)
)
SMALL = {
    "base": {
        "config": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
        }
    },
    "cold_start": {"max_steps": 12},
}
LESS = {"generation_batch_size": 32, "max_steps": 4, "save_steps": 2, "logging_steps": 1}


@pytest.fixture
def recipe(tmp_path):
    """A recipe of the page, with fewer and smaller steps."""

    def make(name):
        text = yaml.safe_load(BLOCKS[name])
        text["extends"] = str(REPOSITORY / "recipes" / text["extends"])
        for stage in text["stages"].values():
            stage.update(LESS)
            if "critic" in stage and stage["critic"]["warmup_steps"]:
                stage["critic"]["warmup_steps"] = LESS["max_steps"]
        text["stages"].update(SMALL)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
        return tmp_path / f"{name}.yaml"

    return make


@pytest.mark.parametrize("name", BLOCKS)
def test_the_pages_recipes_are_valid(tmp_path, name):
    text = BLOCKS[name].replace("extends: ", f"extends: {REPOSITORY}/recipes/")
    (tmp_path / "page.yaml").write_text(text)
    assert load_recipe(tmp_path / "page.yaml").warnings == ()


class Killed(RuntimeError):
    """Stands for a process that ends."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_the_pages_recipes_run_and_go_on_where_they_were_killed(recipe, tmp_path, monkeypatch, name):
    file = recipe(name)
    monkeypatch.chdir(tmp_path)
    whole, broken = Layout(tmp_path / "whole"), Layout(tmp_path / "broken")
    assert code_of(file, whole) == 0
    kept, left = tasks.rl.save, []

    def save(loop, step):
        kept(loop, step)
        if len(left) < 2:
            left.append(step)
            raise Killed

    monkeypatch.setattr(tasks.rl, "save", save)
    codes = [code_of(file, broken) for _ in range(3)]
    assert codes == [1, 1, 0]
    assert left == [2, 2]
    assert digests(broken) == digests(whole)


def code_of(file, layout):
    return run_plan(plan_recipe(file, layout), layout, executor="inprocess", prefect=False).exit_code


def digests(layout):
    return {m.step: {n: o.digest for n, o in m.outputs.items()} for m in Store(layout).manifests()}
