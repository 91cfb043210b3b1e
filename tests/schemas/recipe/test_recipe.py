import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

GOOD = Path(__file__).parent.parent.parent / "recipes" / "good"
ROOT = GOOD.parent.parent.parent


def problems(path, **options):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, **options)
    return caught.value.problems


def test_the_pipeline_is_ordered_typed_and_filled_in():
    recipe = load_recipe(GOOD / "pipeline.yaml")
    order = list(recipe.steps)
    for name in order:
        for port in recipe.ports(name):
            assert all(order.index(s) < order.index(name) for s in port.steps)
    assert {p.path: (p.steps, p.type) for p in recipe.ports("judge")} == {
        "model": (("cold_start",), "policy"),
        "data": (("sampled",), "preference_pairs"),
    }
    assert recipe.ports("refine")[0].output == "model"
    assert recipe.after("refine") == ("judge",)
    settings = recipe.settings("explore")
    assert settings["learning_rate"] == 1e-4
    assert settings["policy_loss"] == {"use": "clipped", "epsilon": 0.2, "epsilon_high": None, "delta": None}
    assert settings["rewards"][0] == {
        "use": "answers.exact",
        "weight": 1.0,
        "optional": False,
        "marker": None,
        "ignore_case": False,
    }
    assert settings["loss_terms"][0]["coef"] == 0.04
    assert not {"description", "after", "resources", "retries", "timeout", "seed"} & set(settings)
    assert recipe.settings("refine")["policy_loss"]["epsilon"] == 0.1
    assert recipe.seed("base") == 7
    assert json.loads(json.dumps(recipe.resolved)) == recipe.resolved
    assert ("learning.algorithm.policy_losses.policy_gradient", "clipped") in recipe.code("explore")


def test_every_evaluation_is_decontaminated_against():
    recipe = load_recipe(GOOD / "pipeline.yaml")
    against = recipe.settings("clean")["decontaminate"]["against"]
    assert [(a["use"], a["split"], a["size"], a["test_share"]) for a in against] == [("reasoning_gym", "test", 50, 0.2)]
    assert "against" in str(recipe.stages["clean"])


def test_prompts_of_evaluations_become_inputs_of_curation(tmp_path):
    made = "kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: %s}]"
    (tmp_path / "r.yaml").write_text(
        f"stages:\n  base: {{kind: init}}\n  train: {{{made % 'train'}}}\n  test: {{{made % 'test'}}}\n"
        "  clean: {kind: curate, data: train}\n  off: {kind: curate, data: train, decontaminate: null}\n"
        "  report: {kind: evaluate, model: base, prompts: test}\n"
    )
    recipe = load_recipe(tmp_path / "r.yaml")
    ports = {p.path: p.steps for p in recipe.ports("clean")}
    assert ports == {"data": ("train",), "decontaminate.against_prompts.0": ("test",)}
    assert recipe.settings("clean")["decontaminate"]["against_prompts"] == ["test"]
    assert [p.path for p in recipe.ports("off")] == ["data"]


def test_a_matrix_becomes_steps_and_a_bare_word_means_all_of_them():
    recipe = load_recipe(GOOD / "matrix.yaml")
    names = [n for n in recipe.steps if n.startswith("tuned")]
    assert names == [f"tuned@lr={lr},packing={p}" for lr in ("0.001", "0.0001") for p in ("true", "false")]
    assert [recipe.settings(n)["learning_rate"] for n in names] == [0.001, 0.001, 0.0001, 0.0001]
    assert recipe.stages[names[1]].description == "rate 0.001, ${literal}"
    assert {recipe.origin(n) for n in names} == {"tuned"}
    assert [p.steps[0] for p in recipe.ports("soup")] == names
    assert [p.path for p in recipe.ports("report")][1] == f"models.{names[0]}"


def test_a_loop_is_unrolled_with_its_exit():
    recipe = load_recipe(GOOD / "loop.yaml")
    first, second, third = ({p.path: p.steps for p in recipe.ports(f"rounds-{i}-tune")} for i in (1, 2, 3))
    assert first == {"model": ("base",), "data": ("rounds-1-sample",)}
    assert second == {"model": ("rounds-1-tune",), "data": ("rounds-2-sample",)}
    assert third["model"] == ("rounds-2-tune",)
    assert recipe.unless("rounds-1-tune") == ()
    ends = [(u.step, u.metric, u.op, u.value) for u in recipe.unless("rounds-3-tune")]
    assert ends == [("rounds-1-eval", "accuracy", ">=", 0.9), ("rounds-2-eval", "accuracy", ">=", 0.9)]
    tuned = next(p for p in recipe.ports("final") if p.path == "models.tuned")
    assert tuned.steps == ("rounds-3-tune", "rounds-2-tune", "rounds-1-tune")
    assert [recipe.seed(f"rounds-{i}-sample") for i in (1, 2, 3)] == [1, 2, 3]
    assert recipe.origin("rounds-2-tune") == "rounds.tune"
    assert len(recipe.after("final")) == 9


def test_extends_profiles_and_set_lie_on_top_of_each_other():
    recipe = load_recipe(GOOD / "child.yaml")
    assert recipe.name == "child"
    assert recipe.settings("base")["config"] == {"model_type": "llama"}
    assert recipe.settings("data")["teacher"]["error_rate"] == 0.0
    assert recipe.settings("data")["problems"][0]["size"] == 100
    tiny = load_recipe(GOOD / "child.yaml", profile="tiny")
    assert tiny.settings("data")["problems"][0]["size"] == 10
    assert tiny.settings("tuned")["max_steps"] == 3
    assert load_recipe(GOOD / "child.yaml", profile="other").seed("base") == 3
    chosen = ["stages.tuned.max_steps=4", "vars.size=5", "stages.data.problems.0.seed=9", "seed=8"]
    top = load_recipe(GOOD / "child.yaml", profile="tiny", overrides=chosen)
    assert top.settings("tuned")["max_steps"] == 4
    assert (top.settings("data")["problems"][0]["size"], top.settings("data")["problems"][0]["seed"]) == (5, 9)
    assert top.seed("tuned") == 8


@pytest.mark.parametrize(
    ("text", "message", "advice"),
    [
        ("stages.tund.max_steps=4", "no `stages.tund` to set", "did you mean `tuned`"),
        ("vars.sise=4", "no `vars.sise` to set", "did you mean `size`"),
        ("stages.tuned.max_stps=4", "unknown key `max_stps`", "did you mean `max_steps`"),
        ("stages.tuned.max_steps=many", "whole number", ""),
        ("stages.data.problems.7.seed=4", "no item 7", "items 0 to 0"),
        ("stages.tuned.max_steps", "wants key.path=value", ""),
        ("stages.tuned.max_steps=[", "not YAML", ""),
        ("sead=3", "unknown key `sead`", "did you mean `seed`"),
    ],
)
def test_wrong_overrides_are_named(text, message, advice):
    problem = problems(GOOD / "child.yaml", overrides=[text])[0]
    assert message.replace("whole number", "valid integer") in problem.message
    assert advice in problem.advice
    assert problem.file == f"--set {text}"


def test_unknown_profile_is_named():
    problem = problems(GOOD / "child.yaml", profile="tinny")[0]
    assert "did you mean `tiny`" in problem.advice


def test_errors_of_a_parent_point_into_the_parent(tmp_path):
    (tmp_path / "a.yaml").write_text("stages:\n  base: {kind: init, max_lenght: 3}\n")
    (tmp_path / "b.yaml").write_text("extends: [a.yaml]\nname: b\n")
    problem = problems(tmp_path / "b.yaml")[0]
    assert (Path(problem.file).name, problem.line, problem.column) == ("a.yaml", 2, 22)


def test_all_problems_are_reported_in_one_pass(tmp_path):
    (tmp_path / "r.yaml").write_text(
        "stages:\n  base: {kind: init, x: 1}\n  sft: {kind: sft, model: bse, data: nothing}\n  c: {kind: cure}\n"
    )
    assert [p.line for p in problems(tmp_path / "r.yaml")] == [2, 3, 3, 4]


def test_environment_references_are_kept_and_never_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "hunter2")
    (tmp_path / "r.yaml").write_text(
        "stages:\n  base: {kind: init, config: {model_type: qwen3, key: '${env:MY_KEY}'}}\n"
    )
    recipe = load_recipe(tmp_path / "r.yaml")
    assert recipe.settings("base")["config"]["key"] == "${env:MY_KEY}"
    assert "hunter2" not in json.dumps(recipe.resolved)


@pytest.mark.timeout(30)  # expanded, they are a hundred million values
def test_variables_that_multiply_are_refused(tmp_path):
    lines = ["vars:", "  a: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"  {b}: [" + ", ".join(["'${vars." + a + "}'"] * 10) + "]" for a, b in pairwise("abcdefghi")]
    (tmp_path / "r.yaml").write_text("\n".join([*lines, "stages:", "  base: {kind: init, config: {x: '${vars.i}'}}"]))
    assert "more than 50000 values" in problems(tmp_path / "r.yaml")[0].message


def test_code_beside_the_recipe_is_checked_without_being_imported(tmp_path):
    (tmp_path / "my_lab.py").write_text(
        "raise SystemExit('imported')\n"
        "from typing import Annotated\nfrom pydantic import Field\n"
        "def short(rows, completions, *, limit: Annotated[int, Field(ge=1)] = 9):\n    '''Short ones.'''\n"
        "def open_(rows, completions, **options): ...\n"
        "def odd(text): ...\n"
    )
    text = (GOOD / "pipeline.yaml").read_text()
    file = tmp_path / "r.yaml"

    def with_reward(reward):
        file.write_text(text.replace("rewards: [{use: answers.exact}]", f"rewards: [{reward}]"))
        return file

    recipe = load_recipe(with_reward("{use: 'my_lab:short'}"))
    assert recipe.settings("refine")["rewards"] == [
        {"use": "my_lab:short", "weight": 1.0, "optional": False, "limit": 9}
    ]
    assert "greater than or equal to 1" in problems(with_reward("{use: 'my_lab:short', limit: 0}"))[0].message
    assert "did you mean `limit`" in problems(with_reward("{use: 'my_lab:short', limt: 3}"))[0].advice
    assert "did you mean `short`" in problems(with_reward("'my_lab:shrt'"))[0].advice
    assert "cannot be checked" in problems(with_reward("'my_lab:open_'"))[0].message
    assert "takes text, which this slot does not supply" in problems(with_reward("'my_lab:odd'"))[0].message


def test_warnings_do_not_refuse():
    recipe = load_recipe(GOOD / "pipeline.yaml", overrides=["stages.explore.num_iterations=2"])
    estimate, clip = (warning.message for warning in recipe.warnings)
    assert "this estimate is biased" in estimate
    assert "epsilon has no effect" in clip


def test_loading_imports_nothing_heavy():
    code = (
        "import sys\nfrom schemas.recipe.load import load_recipe\n"
        f"load_recipe({str(GOOD / 'pipeline.yaml')!r})\n"
        "heavy = {'torch', 'ray', 'prefect', 'mlflow', 'transformers', 'dvc', 'duckdb', 'pyarrow', 'learning'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_problems_of_the_head_and_of_all_stages_are_reported_at_once(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("""
name: "not a name!"
sead: 3
stages:
  base: {kind: init, config: {model_type: qwen3, hidden_size: 96}}
  one: {kind: sftt, model: base}
  two: {kind: sft, model: base, data: nowhere, learning_rte: 3}
""")
    with pytest.raises(RecipeError) as refused:
        load_recipe(file)
    assert [(p.line, p.path) for p in refused.value.problems] == [
        (2, "name"),
        (3, "sead"),
        (6, "stages.one.kind"),
        (7, "stages.two.learning_rte"),
    ]
