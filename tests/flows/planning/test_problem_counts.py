"""A toy task that has fewer problems than a recipe asks for is named before a run, at its line."""

import pytest

from flows.planning.problem_counts import find_count_problems
from flows.planning.recipe_plan import plan_recipe
from learning.toy_tasks.atlas import atlas_questions
from lineage.layout import Layout
from schemas.errors import RecipeError, StepError
from schemas.recipe.load import load_recipe

RECIPE = """\
name: towns
stages:
  base: {kind: init}
  lessons:
    kind: synthesize
    problems: [{use: atlas_questions, towns: 15, split: train, size: 60}]
    teacher: scripted
  tuned: {kind: sft, model: base, data: lessons, max_steps: 1}
  report:
    kind: evaluate
    models: {tuned: tuned}
    tasks: [{use: atlas_questions, towns: 15, split: test, size: SIZE}]
"""


def count_test_questions():
    """Return how many questions of the default world are found when 200 are asked for."""
    with pytest.raises(StepError, match=r"atlas_questions: 10000 draws gave \d+ different test problems") as error:
        atlas_questions(towns=15, split="test", size=200)
    return int(str(error.value).split("gave ")[1].split()[0])


def test_fifteen_towns_have_too_few_test_questions(tmp_path):
    file, there = tmp_path / "recipe.yaml", count_test_questions()
    assert there < 200
    file.write_text(RECIPE.replace("SIZE", str(there // 2)))
    assert list(find_count_problems(load_recipe(file))) == []
    file.write_text(RECIPE.replace("SIZE", "200"))
    (problem,) = find_count_problems(load_recipe(file))
    assert (problem.line, problem.path) == (12, "stages.report.tasks.0.size")
    assert f"gave {there} different test problems for `size: 200`" in problem.message
    assert problem.message.endswith("raise `towns` or `rounds`")
    with pytest.raises(RecipeError, match=r"recipe.yaml:12:\d+: stages.report.tasks.0.size: atlas_questions: 10000"):
        plan_recipe(file, Layout(tmp_path))


def test_problems_within_others_are_counted_too(tmp_path):
    file = tmp_path / "recipe.yaml"
    flat = "{use: atlas_questions, towns: 15, split: train, size: 60}"
    few = flat.replace("15", "4").replace("60", "900")
    nested = f"{{use: turns, by: scripted, env: {{use: tools, tools: [search]}}, of: {few}}}"
    assert flat in RECIPE
    file.write_text(RECIPE.replace("SIZE", "20").replace(flat, nested))
    (problem,) = find_count_problems(load_recipe(file))
    assert (problem.line, problem.path) == (6, "stages.lessons.problems.0.of.size")
    assert "different train problems for `size: 900`" in problem.message
