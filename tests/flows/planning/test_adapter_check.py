"""Names of modules are compared with the model before a run, as far as it is known: an error has the line."""

from textwrap import indent

import pytest

from flows.planning.compile import compile_recipe
from learning.models.gguf_writing import write_gguf
from learning.models.policy import save_policy
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from tests.flows.checkout import REPOSITORY
from tests.learning.models.test_gguf import make_policy
from tests.small_steps import write_checkpoint_files

RECIPE = """\
name: adapted
stages:
  base: {kind: init, config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
         num_attention_heads: 4, tie_word_embeddings: true}}
  data:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]
    teacher: answer
  first: {kind: sft, model: %s, data: data, max_steps: 1}
  second:
    kind: sft
    model: first
    data: data
    use_peft: true
    %s
    max_steps: 1
"""


def plan(tmp_path, more, model="base"):
    (tmp_path / "recipe.yaml").write_text(RECIPE % (model, more))
    return compile_recipe(load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path))


def test_modules_of_a_model_that_is_still_to_be_made(tmp_path):
    plan(tmp_path, r"lora_target_modules: 'model\.layers\.1\..*_proj'")
    with pytest.raises(RecipeError, match=r"yaml:15:5: stages.second.lora_target_modules: no module `v_prj` .*q_proj"):
        plan(tmp_path, "lora_target_modules: [q_proj, v_prj]")
    with pytest.raises(RecipeError, match=r"yaml:15:5: stages.second.modules_to_save: no module `head` in this model"):
        plan(tmp_path, "modules_to_save: [head]")
    with pytest.raises(RecipeError, match=r"`model\.embed_tokens` shares its weights with `lm_head`"):
        plan(tmp_path, "lora_target_modules: [embed_tokens]")


def test_modules_of_a_source(tmp_path, tiny_policy_folder):
    plan(tmp_path, "modules_to_save: [q_norm]", model=f'"path:{tiny_policy_folder}"')
    with pytest.raises(RecipeError, match=r"recipe\.yaml:15:\d+: .*regular expression matches no module .*gate_proj"):
        plan(tmp_path, "lora_target_modules: 'c_attn'", model=f'"path:{tiny_policy_folder}"')


def test_modules_of_a_gguf_file(tmp_path):
    save_policy(make_policy("llama"), tmp_path / "plain")
    (tmp_path / "theirs").mkdir()
    write_gguf(tmp_path / "plain", tmp_path / "theirs" / "model.gguf", "f16", "theirs")
    model = f'"path:{tmp_path}/theirs"'
    plan(tmp_path, "modules_to_save: [v_proj]", model=model)
    with pytest.raises(RecipeError, match=r"yaml:15:5: stages.second.lora_target_modules: no module `v_prj` .*q_proj"):
        plan(tmp_path, "lora_target_modules: [q_proj, v_prj]", model=model)


def test_models_without_weights_in_4_bits_are_refused_by_name(tmp_path):
    plan(tmp_path, "load_in_4bit: true")
    write_checkpoint_files(tmp_path / "theirs", "mamba")
    with pytest.raises(RecipeError, match=r"yaml:15:5: stages.second.load_in_4bit: mamba reads the weights of linear"):
        plan(tmp_path, "load_in_4bit: true", model=f'"path:{tmp_path}/theirs"')


def test_the_recipe_of_the_documentation_is_valid(tmp_path):
    text = (REPOSITORY / "docs" / "adapters.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "recipe.yaml").write_text(RECIPE.partition("  first:")[0] + indent(text, "  "))
    stage = load_recipe(tmp_path / "recipe.yaml").stages["tuned"]
    assert stage.use_peft
    assert stage.use_rslora
    assert stage.modules_to_save == ["norm"]
