"""A toy task that has fewer problems than a recipe asks for is named before a run, at its line."""

import signal

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
    assert list(find_count_problems(load_recipe(file), Layout(tmp_path))) == []
    file.write_text(RECIPE.replace("SIZE", "200"))
    (problem,) = find_count_problems(load_recipe(file), Layout(tmp_path))
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
    (problem,) = find_count_problems(load_recipe(file), Layout(tmp_path))
    assert (problem.line, problem.path) == (6, "stages.lessons.problems.0.of.size")
    assert "different train problems for `size: 900`" in problem.message


SUMS = """\
name: sums
stages:
  base: {kind: init}
  report:
    kind: evaluate
    models: {base: base}
    tasks:
      - {use: reasoning_gym, family: chain_sum, split: train, size: SIZE, config: {max_terms: 2, OPTION: 1}}
"""


def write_sums(folder, size, option="max_digits"):
    (folder / "sums.yaml").write_text(SUMS.replace("SIZE", str(size)).replace("OPTION", option))
    return load_recipe(folder / "sums.yaml")


@pytest.mark.parametrize(
    ("size", "option", "message"),
    [
        (400, "max_digits", r"gave \d+ distinct problems, \d+ of them train, but size is 400; lower `size`, widen"),
        (40, "digits", r"config .*digits"),
    ],
)
def test_a_family_of_reasoning_gym_that_is_too_small_is_named_before_a_run(tmp_path, size, option, message):
    file = write_sums(tmp_path, size, option).file
    with pytest.raises(RecipeError, match=rf"sums.yaml:8:\d+: stages.report.tasks.0: .*{message}"):
        plan_recipe(file, Layout(tmp_path))
    assert list(find_count_problems(write_sums(tmp_path, 40), Layout(tmp_path))) == []


def test_problems_that_are_enough_are_drawn_once(tmp_path, monkeypatch):
    layout = Layout(tmp_path)
    drawn = []
    monkeypatch.setattr("flows.planning.problem_counts._draw", lambda slot: drawn.append(slot.values["size"]) or "")
    for size in (20, 30, 20, 30):
        assert list(find_count_problems(write_sums(tmp_path, size), layout)) == []
    assert drawn == [20, 30]
    (layout.state / "cache/problem_counts").write_text("[3")
    assert list(find_count_problems(write_sums(tmp_path, 20), layout)) == []
    assert drawn == [20, 30, 20]


def test_problems_that_take_long_are_left_to_their_step(tmp_path, monkeypatch):
    monkeypatch.setattr("flows.planning.problem_counts.LONGEST_DRAW", 1e-3)
    before = signal.getsignal(signal.SIGVTALRM)
    assert list(find_count_problems(write_sums(tmp_path, 400), Layout(tmp_path))) == []
    assert signal.getsignal(signal.SIGVTALRM) is before
