"""Settings that a stage would never read are refused at their place, with what to do."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = """
name: unused
DEFAULTS
endpoints:
  judge: {base_url: "http://127.0.0.1:9", model: judge}
stages:
  base: {kind: init, config: {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 1,
         num_attention_heads: 4, num_key_value_heads: 2}, max_length: 64}
  prompts:
    {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8}]}
  rows: {kind: synthesize, prompts: prompts, teacher: answer}
  stage:
    STAGE
    KEY
"""
PROMPTS = "{kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, split: test, size: 8}],"
TAUGHT = "{kind: synthesize, prompts: prompts, teacher: answer,"
ASKED = "{kind: synthesize, prompts: prompts, teacher: {use: endpoint, endpoint: judge},"
SAMPLED = "{kind: synthesize, prompts: prompts, model: base,"
PAIRS = "{kind: synthesize, prompts: prompts, model: base, emit: preference_pairs,"
SERVED = "{kind: synthesize, prompts: prompts, model: base, engine: {use: openai, endpoint: judge},"
JUDGED = "{kind: evaluate, model: base, prompts: prompts, engine: {use: openai, endpoint: judge},"
RL = "{kind: rl, algorithm: grpo, model: base, prompts: prompts, rewards: [answers.exact], max_steps: 6,"
SFT = "{kind: sft, model: base, data: rows, max_steps: 6,"


def load(folder, stage, key, defaults=""):
    text = RECIPE.replace("STAGE", stage).replace("KEY", f"{key}}}").replace("DEFAULTS", defaults)
    (folder / "recipe.yaml").write_text(text)
    return load_recipe(folder / "recipe.yaml")


@pytest.mark.parametrize(
    ("stage", "key", "message"),
    [
        (PROMPTS, "dtype: bfloat16", "`emit: prompts` writes problems without completions"),
        (TAUGHT, "dtype: bfloat16", "a teacher writes the completions"),
        (TAUGHT, "engine: vllm", "a teacher writes the completions"),
        (ASKED, "dtype: bfloat16", "a teacher writes the completions"),
        (TAUGHT, "num_generations: 8", "`answer` is a program, which writes one completion of each problem"),
        (TAUGHT, "temperature: 0.7", "`answer` is a program"),
        (TAUGHT, "max_completion_length: 500", "`answer` is a program"),
        (TAUGHT, "rewards: [answers.boxed]", "`answer` is a program"),
        (TAUGHT, "min_reward: 0.5", "`answer` is a program"),
        (PROMPTS, "num_generations: 8", "`emit: prompts` writes problems without completions"),
        (SAMPLED, "min_margin: 0.2", "`emit: chat` keeps single samples"),
        (PAIRS, "min_reward: 0.2", "pairs are chosen by the difference of their rewards"),
        (SERVED, "dtype: bfloat16", "the engine asks a server"),
        (JUDGED, "dtype: bfloat16", "the engine asks a server"),
        (RL, "eval_steps: 3", "no prompts are held out"),
        (RL, "references: {old: {mixup_alpha: 0.5}}", "this reference is never updated"),
        (
            SFT,
            "load_best_model_at_end: true, validation_fraction: 0.2, eval_steps: 6",
            "compares evaluations, and 6 steps have only one, every 6",
        ),
        (RL, "early_stopping_patience: 1, eval_prompts: prompts, eval_steps: 4", "have only one, every 4"),
    ],
)
def test_a_setting_without_an_effect_is_refused_at_its_place(tmp_path, stage, key, message):
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, stage, key)
    (problem,) = [p for p in caught.value.problems if message in p.message]
    line = (tmp_path / "recipe.yaml").read_text().splitlines()[problem.line - 1]
    assert line.strip() == f"{key}}}"
    assert problem.path.startswith(f"stages.stage.{key.partition(':')[0]}")
    assert problem.advice


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        (ASKED, "temperature: 0.5, num_generations: 2"),
        (SAMPLED, "dtype: bfloat16, min_reward: 0.5"),
        (PAIRS, "dtype: bfloat16, min_margin: 0.2"),
        (TAUGHT, "engine: torch"),  # the default
        (RL, "references: {old: {sync_steps: 2, mixup_alpha: 0.5}}"),
        (SFT, "load_best_model_at_end: true, validation_fraction: 0.2, eval_steps: 5"),
        (SFT, "validation_fraction: 0.2, eval_steps: 6"),
        (RL, "load_best_model_at_end: true, eval_prompts: prompts, eval_steps: 3"),
    ],
)
def test_settings_that_a_stage_reads_are_accepted(tmp_path, stage, key):
    assert load(tmp_path, stage, key).stages["stage"]


def test_defaults_of_a_kind_may_be_for_others_of_its_stages(tmp_path):
    recipe = load(tmp_path, TAUGHT, "notes: {round: 1}", "defaults: {synthesize: {dtype: bfloat16}}")
    assert recipe.stages["stage"].dtype == "bfloat16"
