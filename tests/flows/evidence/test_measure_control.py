"""Outcomes of control policies: paired by start, at a cost in environment steps."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.evidence import measure
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.pages.evidence import write_evidence
from schemas.pages.evidence_page import write_pages

RECIPE = """
vars: {seed: 1}
outcome: {claim: more is more, method: long, against: short, metric: mean_return%s}
defaults:
  control:
    env: tests.control_worlds:line
    seed: "${vars.seed}"
    algorithm: td3
    data: [walk]
    networks: {hidden_sizes: [8]}
    batch_size: 8
    learning_starts: 8
    environment_steps: 24
stages:
  walk: {kind: collect, env: tests.control_worlds:line, policy: random, environment_steps: 10}
  short: {kind: control, learning_rate: 1.0e-4}
  long: {kind: control, learning_rate: 1.0e-2, environment_steps: %d}
  report:
    kind: evaluate_control
    env: tests.control_worlds:line
    models: {short: short, long: long}
    episodes: 4
    num_bootstrap: 100
"""


def write(folder, steps, more=""):
    (folder / "mine.yaml").write_text(RECIPE % (more, steps))
    return folder / "mine.yaml"


def test_policies_are_compared_start_by_start(tmp_path):
    recipe = write(tmp_path, 24)
    made = measure.measure(recipe, [1, 2], Layout(tmp_path), "inprocess", Console(quiet=True))
    assert made.problems == 4
    assert {one.method_spent.environment_steps for one in made.seeds} == {24}  # not the walk, which both need
    assert {one.method_spent.tokens for one in made.seeds} == {0}
    reports = sorted((Layout(tmp_path).state / "artifacts").glob("evaluate_control-*/outputs/report/samples.parquet"))
    gains = []
    for report in reports:
        rows = {(row["model"], row["id"]): row["score"] for row in pq.read_table(report).to_pylist()}
        gains.append([rows["long", f"start-{i}"] - rows["short", f"start-{i}"] for i in range(4)])
    assert len(reports) == 2
    assert made.value == pytest.approx(np.mean(gains), abs=1e-6)
    assert made.problems_error == pytest.approx(np.std(np.mean(gains, 0), ddof=1) / 2, abs=1e-6)
    write_evidence(made, tmp_path / "out" / "mine.json")
    write_pages(tmp_path / "out", tmp_path)
    page = (tmp_path / "out" / "README.md").read_text()
    assert "| seed | short | long | difference | environment steps, short and long |" in page
    assert "| 24, 24 |" in page


def test_unequal_steps_are_refused_without_a_reason(tmp_path):
    recipe = write(tmp_path, 48)
    with pytest.raises(PlanError, match="environment steps per seed: long 48, short 24"):
        measure.measure(recipe, [1, 2], Layout(tmp_path), "inprocess", Console(quiet=True))


def test_a_rule_of_the_report_is_a_comparator_that_costs_nothing(tmp_path):
    recipe = write(tmp_path, 24, ", unequal: a rule learns nothing, start: any")
    text = recipe.read_text().replace("against: short", "against: any")
    recipe.write_text(
        text.replace("models: {short: short, long: long}", "models: {long: long}\n    policies: {any: random}")
    )
    made = measure.measure(recipe, [1, 2], Layout(tmp_path), "inprocess", Console(quiet=True))
    for one in made.seeds:
        assert (one.against_key, one.against_spent.environment_steps) == ("", 0)
        assert one.method_spent.environment_steps == 24 + 10
        assert one.against == one.start != one.method
    recipe.write_text(recipe.read_text().replace("method: long", "method: any"))
    with pytest.raises(RecipeError, match=r"outcome.method: `report` evaluates no model `any`"):
        measure.measure(recipe, [1, 2], Layout(tmp_path), "inprocess", Console(quiet=True))


def test_the_trials_of_a_search_are_part_of_what_its_model_cost(tmp_path):
    """Three trials of 24 steps, and the training of 24 steps that they must beat."""
    recipe = write(tmp_path, 24, ", unequal: the search is what is compared")
    text = recipe.read_text().replace("method: long", "method: tuned")
    text = text.replace("models: {short: short, long: long}", "models: {short: short, tuned: tuned}")
    search = """
  validation: {kind: evaluate_control, seed: 9, env: tests.control_worlds:line, models: {long: long}, episodes: 2}
  tuned:
    kind: search
    seed: "${vars.seed}"
    train: long
    evaluate: validation
    metric: mean_return
    space: {learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}}
    sampler: random
    trials: 3
"""
    recipe.write_text(text.replace("\n  report:", f"{search}  report:"))
    made = measure.measure(recipe, [1, 2], Layout(tmp_path), "inprocess", Console(quiet=True))
    assert made.seeds[0].method_spent.environment_steps == 24 + 3 * 24
    assert made.seeds[0].against_spent.environment_steps == 24
