"""Three rounds of preference optimisation on fresh pairs, from nothing, in this process."""

import json

import pytest

from flows.planning.compile import compile_recipe
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from learning.data.rows import read_rows
from lineage.artifacts.store import Store
from lineage.layout import Layout

RECIPE = """
schema_version: 1
name: rounds
seed: 3
stages:
  base:
    kind: init
    config:
      {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
       num_key_value_heads: 2, head_dim: 8}
    tokenizer: {use: characters, alphabet: "0123456789+-= ab"}
    max_length: 48
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 30, style: short}]
  rounds:
    repeat:
      max: 3
      first: {tune: base}
      stages:
        samples:
          kind: synthesize
          emit: preference_pairs
          prompts: problems
          model: previous.tune
          num_generations: 4
          max_completion_length: 10
          rewards: [{use: wording.keywords, words: [a, b, ab, aa], per_character: 0.05}]
          min_margin: 0.5
          notes: {round: "${repeat.iteration}"}
        tune:
          kind: preference
          model: previous.tune
          reference: base
          data: samples
          loss: [{use: dpo, beta: 0.5, weight: 0.8}, {use: nll, weight: 0.2}]
          learning_rate: 1.0e-2
          per_device_train_batch_size: 8
          max_steps: 12
"""


@pytest.fixture
def layout(tmp_path, monkeypatch):
    (tmp_path / "rounds.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return Layout(tmp_path)


def test_each_round_samples_from_the_round_before_and_gets_better(layout):
    plan = plan_recipe(layout.root / "rounds.yaml", layout, profile=None)
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
    assert outcome.exit_code == 0, outcome.states
    store, steps = Store(layout), {step.name: step for step in plan.steps}

    def rows(i):
        step = steps[f"rounds-{i}-samples"]
        return read_rows(store.output_folder(step.kind, step.key, "preference_pairs"), "preference_pairs")

    means = []
    for i in (1, 2, 3):
        noted = [json.loads(row["metadata"]) for row in rows(i)]
        assert {note["round"] for note in noted} == {i}
        assert all(note["chosen_score"] - note["rejected_score"] >= 0.5 for note in noted)
        means.append(sum(note["chosen_score"] + note["rejected_score"] for note in noted) / len(noted))
    assert means[0] < means[1] < means[2]
    again = plan_recipe(layout.root / "rounds.yaml", layout, profile=None)
    outcome = run_plan(again, layout, executor="inprocess", prefect=False)
    assert {state.state for state in outcome.states.values()} == {"cached"}


def test_the_losses_are_in_the_key_and_other_losses_are_not_in_the_code(layout):
    from schemas.recipe.load import load_recipe

    plan = compile_recipe(load_recipe(layout.root / "rounds.yaml"), layout)
    tune = next(step for step in plan.steps if step.name == "rounds-1-tune")
    assert "learning.preference.pair_losses" in tune.code
    assert (
        not {
            "learning.algorithm.loss",
            "learning.algorithm.policy_losses.policy_gradient",
            "learning.algorithm.advantages.normalisation",
        }
        & tune.code.keys()
    )
    other = compile_recipe(
        load_recipe(layout.root / "rounds.yaml", overrides=("stages.rounds.repeat.stages.tune.loss=ipo",)), layout
    )
    assert next(step for step in other.steps if step.name == "rounds-1-tune").key != tune.key
    assert next(step for step in other.steps if step.name == "rounds-1-samples").key in {s.key for s in plan.steps}
