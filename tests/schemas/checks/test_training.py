"""What weights in 4 bits under adapters do not go with."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

RECIPE = """
name: quantised
stages:
  base: {kind: init, config: {model_type: qwen3, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 1,
         num_attention_heads: 4, num_key_value_heads: 2}, max_length: 64}
  rows:
    {kind: synthesize, problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8}], EMIT}
  tuned: {model: base, max_steps: 1, MORE}
"""
SFT = ("teacher: answer", "kind: sft, data: rows")
RL = ("emit: prompts", "kind: rl, prompts: rows, rewards: [answers.exact], algorithm: grpo, max_completion_length: 8")
QLORA = "use_peft: true, load_in_4bit: true"
GROUP = "resources: {train: {workers: 2, strategy: STRATEGY}}"


def load(kind, more, folder):
    emit, own = kind
    (folder / "recipe.yaml").write_text(RECIPE.replace("EMIT", emit).replace("MORE", f"{own}, {more}"))
    return load_recipe(folder / "recipe.yaml")


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        (SFT, "load_in_4bit: true", "has an effect only with `use_peft: true`"),
        (SFT, "use_peft: true, bnb_4bit_quant_type: fp4", "has an effect only with `load_in_4bit: true`"),
        (SFT, f"{QLORA}, bf16: true", "use `dtype: bfloat16` instead"),
        (SFT, f"{QLORA}, {GROUP.replace('STRATEGY', 'fsdp2')}", "weights in 4 bits cannot be sharded"),
        (RL, f"{QLORA}, resources: {{rollout: {{workers: 1}}}}", "load the model without quantising it"),
        (RL, f"{QLORA}, resources: {{reference: {{workers: 1}}}}", "load the model without quantising it"),
        (RL, f"{QLORA}, advantage: [gae], critic: {{learning_rate: 1e-3}}", "a copy of the policy's body"),
    ],
)
def test_what_does_not_go_with_weights_in_4_bits_is_refused(kind, more, message, tmp_path):
    with pytest.raises(RecipeError) as error:
        load(kind, more, tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize("kind", [SFT, RL])
def test_weights_in_4_bits_go_with_replicas_of_the_trainer(kind, tmp_path):
    recipe = load(kind, f"{QLORA}, {GROUP.replace('STRATEGY', 'ddp')}", tmp_path)
    assert recipe.settings("tuned")["load_in_4bit"] is True
