"""What validation refuses of a search of merges, by the place in the recipe."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = """\
name: search
stages:
  base: {kind: init, config: {model_type: qwen3}}
  rows: {kind: data, sources: ["path:rows.jsonl"]}
  a: {kind: sft, model: base, data: rows, learning_rate: 1.0e-3}
  b: {kind: sft, model: base, data: rows, learning_rate: 2.0e-3}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 4}]
  exam: {kind: data, emit: prompts, sources: [{from: "path:exam_test.jsonl", split: train}]}
  merged:
    kind: merge_search
    models: {a: a, b: b}
    base_model: base
    candidates: {merge_method: ties, each: {weight: [0.5, 1.0]}}
    tasks: [{use: reasoning_gym, family: chain_sum, split: train, size: 9, seed: 1}]
    prompts: problems
  report:
    kind: evaluate
    models: {merged: merged}
    tasks: [{use: reasoning_gym, family: spell_backward, split: test, size: 4}]
    prompts: exam
"""


def load(tmp_path, *overrides):
    for name in ("rows", "exam_test"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return load_recipe(tmp_path / "recipe.yaml", overrides=overrides)


def test_a_search_knows_the_problems_of_all_evaluations_and_its_methods(tmp_path):
    recipe = load(tmp_path)
    stage = recipe.stages["merged"]
    assert [use.options["family"] for use in stage.held_out] == ["spell_backward"]
    (held_out,) = (port for port in recipe.ports("merged") if port.path.startswith("held_out"))
    assert (held_out.path, held_out.steps) == ("held_out_prompts.0", ("exam",))
    assert ("learning.merge.methods", "ties") in recipe.code("merged")
    assert recipe.outputs("merged") == {"model": "policy", "report": "eval_report"}
    assert "rows" in {
        step for port in recipe.ports("merged") if port.path.startswith("trained_on") for step in port.steps
    }


@pytest.mark.parametrize(
    ("override", "place", "message"),
    [
        ("tasks.0.split=test", "tasks.0", "`split: test` is a test split, by which nothing may be chosen"),
        ("prompts=exam", "prompts", "these are the problems of the evaluation `report`"),
        (
            "tasks.0={use: reasoning_gym, family: spell_backward, split: test, size: 4}",
            "tasks.0",
            "`split: test` is a test split",
        ),
        ("candidates.0.merge_method=tie", "candidates.0.merge_method", "no method `tie`"),
        ("candidates.0.each.wieght=[1]", "candidates.0.each.wieght", "`ties` has no parameter `wieght`"),
        ("candidates.0.each.lambda=[1]", "candidates.0.each.lambda", "`lambda` of `ties` is one value for all models"),
        ("candidates.0.each={}", "candidates.0.merge_method", "`ties` needs the parameter `weight`"),
        ("base_model=null", "candidates.0.merge_method", "needs `base_model`"),
        ("metric=answer_logprob", "metric", "which a search does not compute"),
        ("candidates.0.weight_steps=4", "candidates.0", "`weight` is set twice"),
        (
            "candidates.0={merge_method: linear, weight_steps: 100, each: {x: [1, 2, 3, 4]}}",
            "candidates",
            "lists 1584 merges",
        ),
        ("models={a: a, ties-1: b}", "models.ties-1", "is the name of a merge"),
    ],
)
def test_mistakes_and_test_splits_are_refused_by_name(tmp_path, override, place, message):
    key, _, value = override.partition("=")
    changed = RECIPE.replace("candidates: {merge_method", "candidates: [{merge_method").replace("1.0]}}\n", "1.0]}}]\n")
    assert changed != RECIPE
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "RECIPE", changed)
        with pytest.raises(RecipeError) as caught:
            load(tmp_path, f"stages.merged.{key}={value}")
    problems = [problem for problem in caught.value.problems if message in str(problem)]
    assert problems, str(caught.value)
    assert problems[0].path == f"stages.merged.{place}".rstrip(".")


def test_a_test_split_of_a_source_is_found_through_stages(tmp_path):
    with pytest.raises(RecipeError, match=r"`problems` reads `split: test`, a test split"):
        load(tmp_path, "stages.problems.problems.0.split=test")
    with pytest.raises(RecipeError, match=r"exam_test.jsonl` is named as a test split"):
        load(tmp_path, "stages.merged.prompts=exam", "stages.report.prompts=problems")
    with pytest.raises(RecipeError, match=r"`exam` reads `split: test_sft`, a test split"):
        load(
            tmp_path,
            "stages.merged.prompts=exam",
            "stages.report.prompts=problems",
            "stages.exam.sources.0={from: hub:org/name, split: test_sft}",
        )
