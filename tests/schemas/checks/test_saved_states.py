"""Searches in the states of an environment: what a search cannot use is refused where it is written."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

HEAD = """name: tried
stages:
  base: {kind: init}
  data:
    kind: synthesize
    model: base
    problems: [{use: forms, split: train, size: 3}]
    search:
      use: state_beam
      width: 2
"""
OWN = """class Parent:
    def begin(self, row, seed) -> "Play":
        return Play()
class Environment(Parent):
    pass
class State:
    def save(self): return {}
class Play(State):
    def step(self, action): ...
"""


def load(folder, env, more=""):
    """Return the recipe with an environment to search in."""
    (folder / "r.yaml").write_text(f"{HEAD}      env: {env}\n{more}")
    return load_recipe(folder / "r.yaml")


@pytest.mark.parametrize(
    "env", ["form", "guess", "text_game", "{use: guess, max_turns: 3}", "program", "{use: gymnasium, id: X-v0}"]
)
def test_environments_are_searched_whether_or_not_they_save_their_states(env, tmp_path):
    assert load(tmp_path, env).steps


@pytest.mark.parametrize(
    ("env", "place", "message"),
    [
        ("{use: guess, context: {use: window, keep: 1}}", "11:34", "a search shows the model all turns"),
        ("own_world:Environment", "11:12", "episodes of `own_world:Environment` have `save` and no `restore`, with"),
    ],
)
def test_others_are_refused_at_their_place(env, place, message, tmp_path):
    (tmp_path / "own_world.py").write_text(OWN)
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, env)
    (problem,) = caught.value.problems
    assert (f"{problem.line}:{problem.column}", message in problem.message) == (place, True)


def test_revisions_search_in_states_too(tmp_path):
    revisions = HEAD.replace("state_beam", "state_revisions").replace("width: 2", "simulations: 2")
    (tmp_path / "r.yaml").write_text(f"{revisions}      env: {{use: guess, context: {{use: window, keep: 1}}}}\n")
    with pytest.raises(RecipeError, match="a search shows the model all turns"):
        load_recipe(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    ("old", "new"), [("def step", "def restore(self, saved): ...\n    def step"), ("class Play(State)", "class Play")]
)
def test_an_environment_of_ones_own_has_both_methods_or_neither(old, new, tmp_path):
    (tmp_path / "own_world.py").write_text(OWN.replace(old, new))
    assert load(tmp_path, "own_world:Environment").steps


def test_solvers_of_an_evaluation_are_checked_too(tmp_path):
    more = """  report:
    kind: evaluate
    models: {base: base}
    tasks: [{use: forms, split: test, size: 3}]
    solvers: {base: {use: state_mcts, simulations: 2, env: "own_world:Environment"}}
    rewards: [{use: plans.replayed, env: form}]
"""
    (tmp_path / "own_world.py").write_text(OWN)
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, "form", more)
    (problem,) = caught.value.problems
    assert problem.path == "stages.report.solvers.base.env"


def test_a_search_for_parts_needs_an_environment_that_divides_its_problems(tmp_path):
    more = """  report:
    kind: evaluate
    models: {base: base}
    tasks: [{use: rewriting_goals, split: test, size: 3}]
    solvers: {base: {use: planned_search, planner: rewriting_planner, expansions: 2, env: prover}}
    rewards: [{use: plans.replayed, env: prover}]
"""
    assert load(tmp_path, "form", more).steps
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, "form", more.replace("env: prover}}", "env: form}}"))
    (problem,) = caught.value.problems
    assert problem.path == "stages.report.solvers.base.env"
    assert "`form` has no `divide`" in problem.message
