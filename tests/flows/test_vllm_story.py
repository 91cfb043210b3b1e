"""The quickstart's kind of work with both engines, from one cold start: equal accuracies, a small gap at every step."""

import json
from importlib.util import find_spec

import pytest

from flows.launch import plan_recipe, run_plan
from lineage.layout import Layout
from lineage.store import Store

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]
STEPS = 12
RECIPE = """
name: both
seed: 7
defaults:
  rl:
    algorithm: dr_grpo
    model: cold_start
    prompts: exercises
    rewards: [answers.exact]
    generation_batch_size: 64
    num_generations: 8
    max_completion_length: 6
    max_steps: 12
    learning_rate: 1e-3
    logging_steps: 1
  evaluate:
    models: {cold_start: cold_start, by_torch: by_torch, by_vllm: by_vllm}
    tasks:
      - {use: reasoning_gym, family: chain_sum, split: test, size: 100, seed: 4, style: short, config: "${vars.sums}"}
    num_generations: 4
    temperature: 1.0
    max_completion_length: 6
    seed: 11
vars:
  sums: {min_terms: 2, max_terms: 3, min_digits: 1, max_digits: 1}
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 64, intermediate_size: 192, num_hidden_layers: 2, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 32, tie_word_embeddings: true}
    tokenizer: {use: characters}
    max_length: 48
  lessons:
    kind: synthesize
    problems:
      - {use: reasoning_gym, family: chain_sum, split: train, size: 300, seed: 1, style: short, config: "${vars.sums}"}
    teacher: {use: answer, error_rate: 0.4}
  cold_start:
    kind: sft
    model: base
    data: lessons
    learning_rate: 3e-3
    per_device_train_batch_size: 32
    max_steps: 250
    max_length: 48
  exercises:
    kind: synthesize
    emit: prompts
    problems:
      - {use: reasoning_gym, family: chain_sum, split: train, size: 300, seed: 2, style: short, config: "${vars.sums}"}
  by_torch: {kind: rl, engine: torch}
  by_vllm: {kind: rl, engine: vllm, watch: [{metric: logprob_gap, max: 0.001}]}
  seen_by_torch: {kind: evaluate, engine: torch}
  seen_by_vllm: {kind: evaluate, engine: vllm}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Manifest and curve of every step."""
    root = tmp_path_factory.mktemp("both")
    (root / "recipe.yaml").write_text(RECIPE)
    layout = Layout(root)
    plan = plan_recipe(root / "recipe.yaml", layout)
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
    assert outcome.exit_code == 0, {name: state.reason for name, state in outcome.states.items()}
    store = Store(layout)
    found = {step.name: store.find(step.kind, step.key) for step in plan.steps}
    return {name: (manifest, curve_of(store, manifest)) for name, manifest in found.items()}


def curve_of(store, manifest):
    file = store.folder(manifest) / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def test_the_difference_from_the_trainer_is_told_at_every_step(ran):
    gaps = [point["logprob_gap"] for point in ran["by_vllm"][1]]
    assert len(gaps) == STEPS
    assert 0 < max(gaps) < 1e-4
    assert ran["by_vllm"][0].metrics["logprob_gap"] == gaps[-1]


def test_reinforcement_learning_goes_the_same_way(ran):
    """The same tokens are drawn as long as rounding leaves them alone, so even the curves agree."""
    by_torch, by_vllm = ([point["reward"] for point in ran[name][1]] for name in ("by_torch", "by_vllm"))
    assert by_vllm[:3] == pytest.approx(by_torch[:3], abs=0.02)
    assert by_vllm == pytest.approx(by_torch, abs=0.15)
    assert sum(by_vllm[-3:]) > sum(by_vllm[:3])


def test_both_engines_see_the_same_accuracies(ran):
    tables = [ran[name][0].details["table"] for name in ("seen_by_torch", "seen_by_vllm")]
    rows = [{line["model"]: line for line in table if line["family"] == "all"} for table in tables]
    for model, line in rows[0].items():
        assert line["value"] == pytest.approx(rows[1][model]["value"], abs=0.01)
    trained = [rows[1][name] for name in ("by_torch", "by_vllm")]
    assert max(t["low"] for t in trained) < min(t["high"] for t in trained)
