"""Models from outside, when a recipe is planned: reward models with tokenizers of their own, adapters, and refusals."""

import json
import re
import shutil

import pytest

from flows.planning.compile import compile_recipe
from flows.planning.outside_models import find_outside_model_problems
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from tests.learning.models.test_reward_model import save_classifier

RECIPE = """\
name: scored
stages:
  base: {kind: init, tokenizer: {use: characters, alphabet: "abc0123456789"}}
  asked:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 10}]
  better:
    kind: rl
    algorithm: grpo
    model: base
    prompts: asked
    rewards:
      - {use: models.learned, model: "path:./judge"%s}
    max_steps: 1
"""


def plan(tmp_path, more=""):
    (tmp_path / "recipe.yaml").write_text(RECIPE % more)
    return compile_recipe(load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path))


def test_a_classifier_is_a_reward_model_whatever_its_tokenizer(tmp_path):
    save_classifier(tmp_path / "judge", "llama")
    (given,) = [i for i in plan(tmp_path).step("better").inputs if i.port == "rewards.0.model"]
    assert (given.type, given.source) == ("reward_model", "path:./judge")


def test_other_sources_and_unknown_scales_are_refused_where_they_are_written(tmp_path):
    save_classifier(tmp_path / "judge", "llama", labels=2)
    with pytest.raises(
        RecipeError, match=r"recipe\.yaml:14:38: .*rewards\.0\.model: path:./judge: a classifier with 2"
    ):
        plan(tmp_path)
    save_classifier(tmp_path / "judge", "llama")
    with pytest.raises(RecipeError, match=r"recipe\.yaml:14:65: .*rewards\.0\.normalise: .*scale .* is unknown"):
        plan(tmp_path, ", normalise: sigmoid")


def test_adapters_that_cannot_be_merged_are_refused_where_they_are_written(tmp_path):
    adapter = tmp_path / "judge"
    (adapter / "base").mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LOHA", "task_type": "CAUSAL_LM"}')
    text = RECIPE.replace("model: base", 'model: "path:./judge"') % ""
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"recipe\.yaml:11:12: .*model: path:./judge: an adapter of type LOHA; only"):
        compile_recipe(load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path))


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "reward_model.json"])
def test_a_classifier_is_no_policy_for_validate_and_plan(tmp_path, head):
    judge = tmp_path / "judge"
    judge.mkdir()
    name = f"Llama{head}" if head.startswith("For") else "LlamaForCausalLM"
    (judge / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": [name]}))
    if head == "reward_model.json":
        (judge / head).write_text('{"max_length": 8, "mean": 0.0, "std": 1.0}')
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("model: base", 'model: "path:./judge"') % "")
    recipe, layout = load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path)
    named = name if head.startswith("For") else "a reward model"
    message = rf"recipe\.yaml:11:12: .*model: path:./judge: {named} predicts no tokens: .* name a language model"
    with pytest.raises(RecipeError, match=message):
        compile_recipe(recipe, layout)
    assert any(re.search(message, str(problem)) for problem in find_outside_model_problems(recipe, layout))


def test_a_language_model_is_a_policy(tiny_policy_folder, tmp_path):
    shutil.copytree(tiny_policy_folder, tmp_path / "judge")
    text = RECIPE.partition("    rewards:")[0].replace("model: base", 'model: "path:./judge"')
    (tmp_path / "recipe.yaml").write_text(f"{text}    rewards: [answers.exact]\n    max_steps: 1\n")
    assert find_outside_model_problems(load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path)) == []
