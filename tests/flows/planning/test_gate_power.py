"""What a plan says its gates can see, before and after an evaluation."""

import re

import pytest

from flows.planning.gate_power import describe_gate_power
from flows.planning.plan_table import make_plan_table
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from learning.evaluation.paired_tests import find_minimum_detectable
from lineage.layout import Layout

RECIPE = """
name: seen
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    tokenizer: {use: characters, alphabet: "0123456789+-= ab"}
    max_length: 48
  other: {kind: init, config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
          num_attention_heads: 2, num_key_value_heads: 2, head_dim: 8}, seed: 5, max_length: 48,
          tokenizer: {use: characters, alphabet: "0123456789+-= ab"}}
  check:
    kind: evaluate
    models: {other: other}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 40, style: short}]
    rewards: [{use: formats.matches, pattern: ".*[0-4]"}]
    limit: 30
    max_completion_length: 3
    num_bootstrap: 200
    gate: {against: base, max_regression: {accuracy: 0.0, accuracy.chain_sum: 0.1}}
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    layout = Layout(tmp_path / "root")
    layout.root.mkdir()
    return plan_recipe(tmp_path / "recipe.yaml", layout), layout


def test_the_smallest_difference_is_at_worst_before_and_measured_after_an_evaluation(plan):
    made, layout = plan
    before = describe_gate_power(made, layout)
    assert [line.split(": ")[1] for line in before] == [
        "accuracy of other − base",
        "accuracy.chain_sum of other − base",
    ]
    worst = find_minimum_detectable(30, 0.0125, spread=1.0)
    assert f"30 problems show a difference of {worst:.3f} (error rate 0.013" in before[0]
    assert all("at worst: it was never evaluated" in line for line in before)
    outcome = run_plan(made, layout, executor="inprocess", prefect=False)
    test = outcome.states["check"].manifest.details["gates"][0]["tests"][0]
    known = find_minimum_detectable(test["n"], 0.0125, spread=test["spread"])
    (after, _) = describe_gate_power(made, layout)
    assert f"difference of {known:.3f} (" in after
    assert f"as in run {outcome.run}" in after
    assert known == pytest.approx(test["detectable"])
    assert re.search(r"gate of check: accuracy of other", str(make_plan_table(made, layout).caption))
