"""`--profile own`: a paper's method on a user's own model and problems, with a BPE tokenizer and a chat template."""

import json
from pathlib import Path

import pytest
import yaml

from flows.planning.data_sources import find_source_problems
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from schemas.source.extend import read_recipe
from tests.bpe_checkpoint import write_bpe_checkpoint

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "papers").glob("*.yaml"))
OWN = [path for path in RECIPES if (profiles := read_recipe(path).get("profiles")) and profiles.get("own")]
METHOD = (
    *("advantage", "advantage_shaping", "ratio", "loss_aggregation", "loss_terms", "token_mask", "filter_groups"),
    *(
        "resample",
        "prompt_sampler",
        "reward_shaping",
        "importance_correction",
        "controllers",
        "references",
        "policy_loss",
    ),
    *("logits_processors", "num_iterations", "num_mini_batches", "generation_batch_size", "num_generations"),
)
"""Settings of an rl stage that are the method, not the problems, the model or the room for a completion."""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder with a checkpoint of a BPE tokenizer and a chat template, and files in columns of their own."""
    folder = tmp_path_factory.mktemp("mine")
    sums = [(a, b) for a in range(1, 9) for b in range(1, 6)]
    rows = [{"question": f"What is {a} plus {b}?", "answer": str(a + b), "worked": f"It is {a + b}."} for a, b in sums]
    files = {"train": rows[:30], "test": rows[30:], "bare": [{"question": row["question"]} for row in rows[30:]]}
    files["pairs"] = [{"prompt": row["question"], "chosen": row["worked"], "rejected": "No."} for row in rows[:30]]
    for name, of in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    write_bpe_checkpoint(folder, [(row["question"], row["worked"]) for row in rows])
    return folder


def sources(path, folder):
    """What a user gives: a value for each variable of the profile that has none."""
    asked = [name for name, value in read_recipe(path, "own").get("vars").plain().items() if value is None]
    columns = {"prompt": "question"}
    train = {"from": f"path:{folder}/train.jsonl", "columns": columns}
    worked = {**train, "columns": {**columns, "completion": "worked"}}
    known = {"model": f"path:{folder}/model", "prompts": train, "pairs": f"path:{folder}/pairs.jsonl"}
    known |= {"held_out": {**train, "from": f"path:{folder}/test.jsonl"}}
    known |= {"unlabelled": {**train, "from": f"path:{folder}/bare.jsonl"}}
    given = {name: known.get(name, worked) for name in asked}
    return [f"vars.{name}={json.dumps(value)}" for name, value in given.items()]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_what_is_left_is_the_method_and_nothing_of_the_toy(path, mine):
    recipe = load_recipe(path, profile="own", overrides=sources(path, mine))
    kinds = {name: stage.kind for name, stage in recipe.stages.items()}
    assert not {"init", "synthesize", "curate", "python"} & set(kinds.values())
    shipped = load_recipe(path)
    methods = {name for name, kind in kinds.items() if kind == "rl"}
    assert methods == {name for name, stage in shipped.stages.items() if stage.kind == "rl" and name in kinds}
    for name in methods:
        ours, theirs = (one.stages[name].model_dump(include=set(METHOD)) for one in (recipe, shipped))
        assert ours == theirs
        (model,) = (port for port in recipe.ports(name) if port.path == "model")
        assert model.source == f"path:{mine}/model" or model.steps[0] in methods
    read = {port.path: port for port in recipe.ports("report")}
    assert recipe.stages["report"].tasks == []
    (held_out,) = read["prompts"].steps
    assert [port.source for port in recipe.ports(held_out)] == [f"path:{mine}/test.jsonl"]
    assert {name.removeprefix("models.") for name in read if name.startswith("models.")} == set(
        recipe.stages["report"].models
    )


def test_a_plan_reads_and_checks_the_files(mine, tmp_path):
    path = RECIPES[0].with_name("xrpo.yaml")
    plan = plan_recipe(path, Layout(tmp_path), profile="own", overrides=sources(path, mine))
    assert {step.name for step in plan.steps} == {"mixture", "baseline", "trained", "report-prompts", "report"}
    wrong = [text.replace('"question"', '"asked"') for text in sources(path, mine)]
    problems = list(find_source_problems(load_recipe(path, profile="own", overrides=wrong), Layout(tmp_path)))
    assert problems
    assert all("no column `asked`" in problem.message for problem in problems)


@pytest.mark.parametrize("row", ["cory", "sppo"])
def test_a_recipe_that_does_not_support_it_refuses_it(row):
    with pytest.raises(RecipeError, match="no profile `own`"):
        load_recipe(RECIPES[0].with_name(f"{row}.yaml"), profile="own")


def test_what_is_missing_is_asked_for():
    with pytest.raises(RecipeError) as caught:
        load_recipe(RECIPES[0].with_name("bapo.yaml"), profile="own")
    (problem,) = caught.value.problems
    assert problem.path == "stages.cold_start"
    assert "--set vars.model=path:./model" in problem.advice


def test_a_stage_may_be_a_model_from_outside(tmp_path):
    """All that only prepared the stage in its place is left out, wherever its name is written."""
    recipe = yaml.safe_load((RECIPES[0].with_name("bapo.yaml")).read_text())
    recipe["extends"] = str(RECIPES[0].parents[1] / "bases" / "chain_sum.yaml")
    recipe["stages"]["cold_start"] = "path:./model"
    (tmp_path / "model").mkdir()
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    loaded = load_recipe(tmp_path / "mine.yaml")
    assert list(loaded.stages) == ["exercises", "fixed", "trained", "report"]
    assert {p.source for p in loaded.ports("report") if p.path == "models.cold_start"} == {"path:./model"}
    recipe["stages"]["cold_start"] = "elsewhere"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(RecipeError, match="`cold_start` needs a model from outside"):
        load_recipe(tmp_path / "mine.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_it_runs(path, mine, tmp_path, monkeypatch):
    """One iteration of every method, on files and a tokenizer that no recipe knows."""
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(path, profile="own", overrides=sources(path, mine))
    small = [f"stages.{name}.max_steps=1" for name, s in recipe.stages.items() if s.kind in ("rl", "sft")]
    small = [text for text in small if "@" not in text]
    plan = plan_recipe(
        path, Layout(tmp_path), profile="own", overrides=[*sources(path, mine), "vars.length=64", *small]
    )
    outcome = run_plan(plan, Layout(tmp_path), executor="inprocess", prefect=False)
    assert outcome.exit_code == 0
    assert outcome.states["report"].state == "done"
