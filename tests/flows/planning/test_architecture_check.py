"""Settings that need another architecture are refused by `validate`, with their line."""

import pytest

from flows.planning.preflight import find_problems
from lineage.layout import Layout
from schemas.recipe.load import load_recipe

SIZES = "hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2"
RECIPE = """
name: architectures
stages:
  base: {kind: init, config: {model_type: MODEL, SIZES}, tokenizer: characters, max_length: 128}
  prompts:
    {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8}]}
  rows: {kind: synthesize, prompts: prompts, teacher: answer}
  tuned: {kind: sft, model: base, data: rows, max_steps: 3, packing: PACKING}
  better:
    kind: rl
    algorithm: grpo
    model: tuned
    prompts: prompts
    rewards: [answers.exact]
    max_steps: 3
    max_completion_length: 16
    routing_replay: REPLAY
"""


def list_problems(folder, model, packing, replay):
    text = RECIPE.replace("MODEL", model).replace("SIZES", SIZES).replace("PACKING", packing).replace("REPLAY", replay)
    (folder / "recipe.yaml").write_text(text)
    return find_problems(load_recipe(folder / "recipe.yaml"), Layout(folder), lambda _: None)


@pytest.mark.parametrize(
    ("model", "line", "path", "message"),
    [
        ("lfm2", 8, "stages.tuned.packing", "the forward pass of lfm2 is padded (layers of convolutions)"),
        ("llama", 17, "stages.better.routing_replay", "llama is dense: it has no experts"),
    ],
)
def test_what_an_architecture_does_not_allow_is_refused_at_its_line(tmp_path, model, line, path, message):
    packing, replay = ("true", "false") if "packing" in path else ("true", "true")
    (problem,) = list_problems(tmp_path, model, packing, replay)
    assert (problem.line, problem.path) == (line, path)
    assert message in problem.message
    assert "leave it out" in problem.message


def test_experts_that_a_configuration_leaves_to_its_defaults_are_known(tmp_path):
    assert not list_problems(tmp_path, "mixtral", "true", "true")
    assert not list_problems(tmp_path, "lfm2", "false", "false")
