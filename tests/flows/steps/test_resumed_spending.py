"""A step that was interrupted and continued from its checkpoint has spent what an uninterrupted one spends."""

import json

import pytest

from flows.evidence.spending import count_completions
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
from lineage.reports.spending import read_spending
from tasks.context import Context
from tests.small_steps import TINY_DEFAULTS

TRAINING = "learning_rate: 1.0e-3, per_device_train_batch_size: 2, max_steps: 5, save_steps: 2"
STAGES = {
    "sft": f"{{kind: sft, model: base, data: lessons, {TRAINING}}}",
    "preference": f"{{kind: preference, model: base, data: path:pairs.jsonl, loss: {{use: dpo}}, {TRAINING}}}",
    "reward_model": f"{{kind: reward_model, model: base, data: path:pairs.jsonl, {TRAINING}}}",
    "process_reward_model": f"{{kind: process_reward_model, model: base, data: path:steps.jsonl, {TRAINING}}}",
    "rl": "{kind: rl, model: base, prompts: sums, algorithm: grpo, rewards: [answers.exact], learning_rate: 1.0e-3, "
    "generation_batch_size: 8, num_generations: 4, max_completion_length: 6, max_steps: 5, save_steps: 2}",
    "control": "{kind: control, env: 'tests.control_worlds:line', loss: ppo, networks: {hidden_sizes: [8]}, "
    "batch_size: 10, rollout_steps: 10, num_envs: 1, environment_steps: 50, learning_starts: 10, save_steps: 20, "
    "logging_steps: 10}",
}
SUMS = "{use: reasoning_gym, family: chain_sum, split: train, size: 8, config: {min_terms: 2, max_terms: 2}}"
RECIPE = f"""
name: interrupted
{TINY_DEFAULTS}
stages:
  base: {{kind: init, tokenizer: {{use: characters}}}}
  lessons: {{kind: synthesize, problems: [{SUMS}], teacher: answer}}
  sums: {{kind: synthesize, emit: prompts, problems: [{SUMS}]}}
  trained: STAGE
"""
LAST = 3
"""Iteration that is under way when the step is interrupted; its checkpoint is of the one before."""


@pytest.fixture
def lab(tmp_path):
    """Plan the recipe with a stage of a kind, in a folder with the rows that it needs."""
    pairs = [{"prompt": f"{i}", "chosen": "good" * (1 + i % 3), "rejected": "bad"} for i in range(8)]
    steps = [{"prompt": f"{i}", "completions": ["a", "b" * (1 + i % 3)], "labels": [True, False]} for i in range(8)]
    for name, rows in (("pairs", pairs), ("steps", steps)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(kind, folder):
        (tmp_path / "recipe.yaml").write_text(RECIPE.replace("STAGE", STAGES[kind]))
        layout = Layout(tmp_path / folder)
        layout.root.mkdir()
        return plan_recipe(tmp_path / "recipe.yaml", layout, to=["trained"]), layout

    return make


@pytest.fixture
def interrupt(monkeypatch):
    """Make the next step that reports iteration `LAST` fail there; returns what it has spent."""

    def make():
        progress, left = Context.progress, {}

        def stop(context, step, total, **values):
            if step * 5 == LAST * total and not left and total in (5, 50):  # control counts environment steps
                left.update(tokens=context.spending.total().tokens, seconds=context.spending.total().seconds)
                raise RuntimeError("interrupted")
            progress(context, step, total, **values)

        monkeypatch.setattr(Context, "progress", stop)
        return left

    return make


@pytest.mark.parametrize("kind", STAGES)
def test_spending_goes_on_from_the_checkpoint(lab, interrupt, kind):
    plan, layout = lab(kind, "whole")
    whole = run_plan(plan, layout, executor="inprocess", prefect=False).states["trained"].manifest
    assert whole.earlier.seconds == whole.earlier.tokens == 0
    plan, layout = lab(kind, "cut")
    left = interrupt()
    broken = run_plan(plan, layout, executor="inprocess", prefect=False)
    assert broken.exit_code == 1
    before = read_spending(layout, broken.run).spent["trained"]
    made = run_plan(plan, layout, executor="inprocess", prefect=False, run=broken.run).states["trained"].manifest
    assert made.outputs == whole.outputs
    assert made.tokens == whole.tokens
    assert (made.tokens > 0) == (kind != "control")
    step = plan.step("trained")
    assert count_completions(step, layout) == (40 if kind == "rl" else 0)
    # Up to the checkpoint of the iteration before; the tokens of the lost one are the run's, not the artifact's.
    assert 0 < made.earlier.seconds < made.seconds
    assert 0 < made.earlier.cpu_seconds < made.cpu_seconds
    assert made.earlier.seconds < left["seconds"]
    assert made.earlier.tokens < left["tokens"] < made.tokens or kind == "control"
    after = read_spending(layout, broken.run).spent["trained"]
    assert before.tokens == left["tokens"]
    assert after.tokens == left["tokens"] + made.tokens - made.earlier.tokens
    assert after.seconds - before.seconds < made.seconds + before.seconds
