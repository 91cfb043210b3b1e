"""Totals of cost by month and recipe are the sums of what the runs recorded."""

import json

import pytest

from flows.commands import author, running
from flows.execution.run_log import write_plan
from flows.runs.costs import make_cost_table, sum_run_costs
from lineage.layout import Layout
from lineage.reports.spending import Cost, Spending, write_spending
from schemas.budget import Budget, Prices
from schemas.plan import Plan

RUNS = {
    "20261031-235959-000001": ("chat", Cost(seconds=10, core_seconds=20, tokens=5), None),
    "20261101-000000-000002": ("chat", Cost(seconds=3600, core_seconds=7200, gpu_seconds=3600), 2.0),
    "20261120-101010-000003": ("maths", Cost(seconds=1, core_seconds=1, tokens=7), None),
    "20261121-101010-000004": ("maths", None, None),
}


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    made = Layout(tmp_path)
    for run, (recipe, cost, price) in RUNS.items():
        budget = Budget(prices=Prices(gpu_hour=price)) if price else None
        write_plan(made, run, Plan(recipe=recipe, file="r.yaml", steps=(), resolved={}, budget=budget))
        if cost is not None:
            write_spending(made, run, Spending({}, {"a": cost, "b": cost}))
    return made


def test_by_month(layout):
    first, second = sum_run_costs(layout, "month")
    assert (first.group, first.runs, first.cost, first.money) == (
        "2026-10",
        1,
        Cost(seconds=20, core_seconds=40, tokens=10),
        None,
    )
    assert (second.group, second.runs, second.money) == ("2026-11", 3, 4.0)
    assert second.cost == Cost(seconds=7202, core_seconds=14402, gpu_seconds=7200, tokens=14)


def test_by_recipe(layout):
    assert [(t.group, t.runs, t.cost.tokens) for t in sum_run_costs(layout, "recipe")] == [
        ("chat", 2, 10),
        ("maths", 2, 14),
    ]


def test_the_command_prints_a_table_or_json(layout, capsys):
    running.costs(running.CostGroup.month, as_json=True)
    assert [row["group"] for row in json.loads(capsys.readouterr().out)] == ["2026-10", "2026-11"]
    assert make_cost_table(sum_run_costs(layout, "month"), "month").row_count == 2


def test_without_runs_there_is_nothing_to_sum(tmp_path):
    assert sum_run_costs(Layout(tmp_path), "month") == []


def test_recipes_are_listed_as_json_with_those_that_cannot_be_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/good.yaml").write_text("description: two stages\nstages: {a: {kind: init}, b: {kind: sft}}\n")
    (tmp_path / "recipes/part.yaml").write_text("defaults: {}\n")
    (tmp_path / "recipes/torn.yaml").write_text("stages: [\n")
    author.ls(as_json=True)
    good, torn = json.loads(capsys.readouterr().out)
    assert (good["stages"], good["description"], good["error"]) == (2, "two stages", "")
    assert torn["file"].endswith("torn.yaml")
    assert torn["error"]
