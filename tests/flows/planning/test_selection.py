import os

import pytest

from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import compare_repeated, plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import PlanError

LAB = """
import itertools, os, pathlib

def number(context, *, value: int = 1):
    (context.output("result") / "n.txt").write_text(str(value))

def moody(context):
    (context.output("result") / "n.txt").write_text(pathlib.Path(__file__).with_name("mood.txt").read_text())
"""
RECIPE = """
name: parts
stages:
  a: {kind: python, function: "lab:number"}
  b: {kind: python, function: {use: "lab:number", value: 2}, inputs: {x: a}}
  side: {kind: python, function: {use: "lab:number", value: 3}}
  c: {kind: python, function: "lab:moody", inputs: {x: b, y: side}}
"""


@pytest.fixture
def parts(tmp_path):
    name = f"partslab_{os.getpid()}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(LAB)
    (tmp_path / "mood.txt").write_text("good")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("lab:", f"{name}:"))
    layout = Layout(tmp_path)

    def plan(**options):
        return plan_recipe(recipe, layout, **options)

    return plan, layout, tmp_path


def run(plan, layout):
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
    assert outcome.exit_code == 0, outcome
    return {name: state.state for name, state in outcome.states.items()}


def test_from_refuses_when_something_before_is_not_there_and_names_it(parts):
    plan, layout, _ = parts
    run(plan(to=["a"]), layout)
    with pytest.raises(PlanError, match="cannot begin at b, c: side before it is not there; run that part first"):
        plan(start=["b", "c"])
    with pytest.raises(PlanError, match="cannot begin at c: b, side before it are not there"):
        plan(start=["c"])
    with pytest.raises(PlanError, match="no step `bb` to begin at"):
        plan(start=["bb"])
    run(plan(to=["side"]), layout)
    assert run(plan(start=["b"]), layout) == {"a": "cached", "b": "done", "side": "cached", "c": "done"}


def test_from_and_to_leave_what_neither_needs(parts):
    plan, layout, _ = parts
    run(plan(to=["a"]), layout)
    assert [s.name for s in plan(start=["b"], to=["b"]).steps] == ["a", "b"]
    with pytest.raises(PlanError, match="no step `side` to begin at in this part"):
        plan(start=["side"], to=["b"])


def test_fresh_does_again_what_is_there_keeps_it_and_says_whether_it_came_out_the_same(parts):
    plan, layout, folder = parts
    run(plan(), layout)
    before = {m.key for m in Store(layout).manifests()}
    again = plan(start=["b"], fresh=True)
    verdicts = explain_plan(again, layout)
    assert verdicts["a"][0] == verdicts["side"][0] == "HIT"
    assert verdicts["b"] == verdicts["c"] == ("MISS", "runs again although its artifact exists (fresh)")
    (folder / "mood.txt").write_text("bad")
    assert run(again, layout) == {"a": "cached", "side": "cached", "b": "done", "c": "done"}
    earlier = next(m.run for m in Store(layout).manifests() if m.key in before)
    assert compare_repeated(again.steps, layout) == {
        "b": f"the same content as run {earlier} made",
        "c": f"other content in result than run {earlier} made",
    }
    assert before < {m.key for m in Store(layout).manifests()}
    assert set(run(plan(), layout).values()) == {"cached"}  # the ordinary run still finds what it made
    assert set(run(again, layout).values()) == {"cached"}  # and the repetition can be resumed


def test_fresh_gives_no_key_of_its_own_to_what_was_never_done(parts):
    plan, layout, _ = parts
    assert [s.key for s in plan(fresh=True).steps] == [s.key for s in plan().steps]
    run(plan(to=["a"]), layout)
    fresh, usual = plan(fresh=True), plan()
    marked = {s.name for s in fresh.steps if "fresh" in s.identity}
    assert marked == {"a"}
    changed = {s.name for s in fresh.steps if s.key != usual.step(s.name).key}
    assert changed == {"a", "b", "c"}
