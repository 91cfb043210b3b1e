"""What is known before a run is looked up once, and a plan costs no more than it must."""

import subprocess
import sys
from collections import Counter

import pytest

import flows.commands.recipes
import flows.planning.estimate
import flows.planning.recipe_plan
import flows.prefect_runs.artifacts
from flows.cli import app
from flows.execution.execute import execute_plan
from flows.execution.run_log import read_plan
from flows.planning.recipe_plan import plan_recipe
from flows.prefect_runs.artifacts import show_plan
from flows.runs.launch import run_plan
from lineage.layout import Layout
from tests.flows.checkout import REPOSITORY
from tests.small_steps import NUMBER, two_numbers

RECIPE = two_numbers("looked-up", "outlook_work", "schedule: {interval: 6h}")


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    (tmp_path / "outlook_work.py").write_text(NUMBER)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    return tmp_path / "recipe.yaml"


@pytest.fixture
def calls(monkeypatch):
    """How often each was called."""
    counts = Counter()

    def count(module, name):
        wanted = getattr(module, name)

        def counted(*arguments, **options):
            counts[name] += 1
            return wanted(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    for module in (flows.planning.recipe_plan, flows.commands.recipes):
        count(module, "load_recipe")
    for name in ("explain_plan", "estimate_steps"):
        count(flows.planning.estimate, name)
    return counts


def test_a_run_that_prefect_shows_is_explained_and_estimated_once(recipe, calls, monkeypatch):
    pages = []
    monkeypatch.setattr(flows.prefect_runs.artifacts, "_create_artifact", lambda *said: pages.append(said[3]))

    def carry(execution, ended):
        show_plan(execution)
        execute_plan(execution)
        ended()

    layout = Layout(recipe.parent)
    for verdict in ("MISS", "HIT"):
        calls.clear()
        plan = plan_recipe(recipe, layout)
        assert run_plan(plan, layout, executor="inprocess", perform=carry).exit_code == 0
        assert calls == {"load_recipe": 1, "explain_plan": 1, "estimate_steps": 1}
        assert pages[-1].count(verdict) == 2


def test_a_plan_reads_its_recipe_once_also_for_the_next_due_time(recipe, calls, capsys):
    app(["plan", str(recipe)], standalone_mode=False)
    assert "once deployed it runs by itself: every 6h: next " in capsys.readouterr().out
    assert calls == {"load_recipe": 1, "explain_plan": 1, "estimate_steps": 1}


def test_the_plan_of_a_run_keeps_its_schedule(recipe):
    layout = Layout(recipe.parent)
    plan = plan_recipe(recipe, layout)
    run = run_plan(plan, layout, executor="inprocess", prefect=False).run
    assert read_plan(layout, run).schedule == plan.schedule
    assert plan.schedule.interval == "6h"


def test_planning_loads_no_distributions_that_it_does_not_need():
    heavy = ("scipy.stats", "scipy.optimize")
    code = f"import sys, flows.planning.gate_power; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
