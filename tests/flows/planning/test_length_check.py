"""Lengths beyond what a model allows are named before a run, for each kind of step that has them."""

import json

import pytest

from flows.planning.length_check import find_length_problems
from lineage.layout import Layout
from schemas.recipe.load import load_recipe

RECIPE = """\
name: lengths
stages:
  base: {kind: init, config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
         num_attention_heads: 4}, max_length: 48}
  step: {kind: %s, %s}
"""
ROW = {
    "sft": {"prompt": "1+1=", "completion": "2"},
    "preference": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
    "reward_model": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
    "process_reward_model": {"prompt": "1+1=", "completions": ["one", "two"], "labels": [False, True]},
    "evaluate": {"prompt": "1+1=", "answer": "2"},
}


@pytest.fixture
def find(tmp_path):
    """Return the problems of a recipe with one step, given its kind and the rest of it."""

    def make(kind, rest):
        (tmp_path / "rows.jsonl").write_text(json.dumps(ROW[kind]) + "\n")
        (tmp_path / "recipe.yaml").write_text(RECIPE % (kind, rest))
        return list(find_length_problems(load_recipe(tmp_path / "recipe.yaml"), Layout(tmp_path)))

    return make


@pytest.mark.parametrize("kind", ["sft", "preference", "reward_model", "process_reward_model"])
def test_training_rows_may_be_as_long_as_the_model_allows(find, kind):
    rest = "model: base, data: 'path:rows.jsonl', max_steps: 1, max_length: %d"
    assert find(kind, rest % 48) == []
    (problem,) = find(kind, rest % 49)
    assert problem.path == "stages.step.max_length"
    assert problem.message == "max_length: 49 is more than the 48 tokens that the model allows"


def test_completions_must_leave_room_for_a_prompt(find):
    rest = "models: {base: base}, prompts: 'path:rows.jsonl', max_completion_length: %d"
    assert find("evaluate", rest % 47) == []
    (problem,) = find("evaluate", rest % 48)
    assert problem.path == "stages.step.max_completion_length"
    assert problem.advice == "the model's maximum length is 48"
