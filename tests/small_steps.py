"""Small steps and models for tests that are about something else: two steps that write numbers, a tiny model."""

import json

TINY_DEFAULTS = """\
defaults:
  init:
    config:
      model_type: qwen3
      hidden_size: 16
      intermediate_size: 32
      num_hidden_layers: 1
      num_attention_heads: 2
      num_key_value_heads: 2
      head_dim: 8
    max_length: 96
"""
"""Defaults of a recipe whose `init` stages make a model of one layer."""
NUMBER = """
def number(context, *, value: int = 1):
    (context.output("result") / "n.txt").write_text(str(value))
    return {"value": value}
"""


def two_numbers(name, module, more=""):
    """A recipe: `a` writes 3, `b` reads it and writes 4, with `number` of a module; `more` are further lines of it."""
    return f"""
name: {name}
{more}
stages:
  a: {{kind: python, function: {{use: "{module}:number", value: 3}}}}
  b: {{kind: python, function: {{use: "{module}:number", value: 4}}, inputs: {{x: a}}}}
"""


def write_checkpoint_files(folder, model_type):
    """Write files that pass for a checkpoint until its weights are read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {}}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def write_gated_recipe(gate, more=""):
    """A recipe: `check` evaluates an untrained model (`base`) on six sums under `gate`; `more` are further stages."""
    return f"""
name: gated
stages:
  base:
    kind: init
    config: {{model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}}
    tokenizer: {{use: characters, alphabet: "0123456789+-= ab"}}
    max_length: 48
  check:
    kind: evaluate
    model: base
    tasks: [{{use: reasoning_gym, family: chain_sum, split: test, size: 6, style: short}}]
    max_completion_length: 4
    num_bootstrap: 100
    gate: {{{gate}}}
{more}"""
