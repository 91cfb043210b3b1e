"""Every recipe of a paper runs end to end in its tiny profile, on one core; what recipes share is made once."""

from pathlib import Path

import pytest

from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "papers").glob("*.yaml"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """One state folder for all."""
    return Layout(tmp_path_factory.mktemp("papers"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_tiny_profile_runs_end_to_end(path, shared, monkeypatch):
    monkeypatch.chdir(shared.root)
    plan = plan_recipe(path, shared, profile="tiny")
    assert {step.resources.num_cpus for step in plan.steps} == {1}
    outcome = run_plan(plan, shared, executor="inprocess", prefect=False)
    states = {name: (state.state, state.reason) for name, state in outcome.states.items()}
    assert outcome.exit_code in (0, 2), states
    assert {state for state, _ in states.values()} <= {"done", "cached", "skipped", "blocked"}, states
