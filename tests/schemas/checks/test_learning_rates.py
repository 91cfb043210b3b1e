"""The learning rate of a stage that sets none, and warnings about unusual ones."""

import pytest

from schemas.recipe.load import load_recipe

RECIPE = """name: a
defaults: {rl: {prompts: problems, algorithm: grpo, max_steps: 1, rewards: [answers.exact]}}
stages:
  base: {kind: init}
  longer: {kind: init, model: base, added_tokens: ["<a>"]}
  marked: {kind: init, model: "hub:org/model", added_tokens: ["<a>"]}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
  lessons: {kind: synthesize, teacher: answer, prompts: problems}
  pairs: {kind: synthesize, emit: preference_pairs, model: "hub:org/model", prompts: problems, num_generations: 2,
          rewards: [answers.exact], temperature: 1.0}
  first: {kind: sft, model: base, data: lessons}
  second: {kind: sft, model: longer, data: lessons}
  mixed: {kind: merge, merge_method: linear, parameters: {weight: 0.5}, models: [{model: first}, {model: second}]}
  third: {kind: rl, model: mixed}
  full: {kind: sft, model: marked, data: lessons}
  adapted: {kind: sft, model: "hub:org/model", data: lessons, use_peft: true}
  better: {kind: rl, model: full}
  light: {kind: rl, model: full, use_peft: true}
  preferred: {kind: preference, model: "hub:org/model", data: pairs}
  preferred_light: {kind: preference, model: "hub:org/model", data: pairs, use_peft: true}
  judge: {kind: reward_model, model: "hub:org/model", data: pairs}
  own: {kind: sft, model: "hub:org/model", data: lessons, learning_rate: 3e-5}
"""
EXPECTED = {
    "first": 1e-3,
    "second": 1e-3,
    "third": 1e-3,
    "full": 2e-5,
    "adapted": 2e-4,
    "better": 1e-6,
    "light": 1e-5,
    "preferred": 1e-6,
    "preferred_light": 1e-5,
    "judge": 1e-5,
    "own": 3e-5,
}


def load(tmp_path, *overrides):
    file = tmp_path / "r.yaml"
    file.write_text(RECIPE)
    return load_recipe(file, overrides=overrides)


def test_a_stage_that_sets_none_gets_the_usual_rate_of_what_it_trains(tmp_path):
    recipe = load(tmp_path)
    rates = {name: recipe.settings(name).get("learning_rate") for name in recipe.steps}
    assert {name: rate for name, rate in rates.items() if rate is not None} == EXPECTED
    assert recipe.warnings == ()


def test_defaults_of_the_recipe_come_before_the_usual_rate(tmp_path):
    assert load(tmp_path, "defaults.sft.learning_rate=5e-5").settings("full")["learning_rate"] == 5e-5


@pytest.mark.parametrize(
    ("rate", "stage", "text"),
    [
        (
            "1e-3",
            "full",
            "a learning rate of 0.001 may ruin the model: here it trains all weights of a pretrained model, by sft",
        ),
        ("1e-3", "light", "a learning rate of 0.001 may ruin the model: here it trains LoRA adapters, by rl"),
        ("1e-8", "own", "a learning rate of 1e-8 may change next to nothing"),
        ("0.5", "first", "a learning rate of 0.5 may ruin the model: here it trains a model of an init stage"),
        ("1e-3", "adapted", ""),
        ("1e-5", "first", ""),
    ],
)
def test_an_unusual_rate_is_a_warning_at_its_place(tmp_path, rate, stage, text):
    warnings = [str(w) for w in load(tmp_path, f"stages.{stage}.learning_rate={rate}").warnings]
    assert len(warnings) == bool(text)
    assert all(f"stages.{stage}.learning_rate: {text}" in w for w in warnings)


def test_other_optimisers_have_rates_of_their_own(tmp_path):
    assert not load(tmp_path, "stages.full.learning_rate=1e-3", "stages.full.optim=muon").warnings
    advice = str(load(tmp_path, "stages.full.learning_rate=1e-3").warnings[0])
    assert "usual are 1e-6 to 0.0002; without this key it is 2e-5" in advice
