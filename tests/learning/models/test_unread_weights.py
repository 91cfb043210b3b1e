"""Two ranks (gloo, FSDP2) read their shards from the files: what each holds meanwhile, and the bits that it gets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from learning.data.tokenizers import characters
from learning.models.policy import Policy, save_policy

SCRIPT = Path(__file__).resolve().parent / "shard_ranks.py"
SHAPE = {"num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
WIDE = {"vocab_size": 301, "hidden_size": 128, "intermediate_size": 384, "head_dim": 32}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": True}
MODELS = {
    "qwen3": WIDE,
    "gpt2": {"vocab_size": 301, "n_embd": 128, "n_layer": 8, "n_head": 4, "n_positions": 64},
    "qwen3_moe": {**WIDE, **EXPERTS},
}
"""Untied; tied, with biases and transposed matrices; with an odd number of experts, which are stored one by one."""
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed


def make_model(kind, folder, **more):
    torch.manual_seed(0)
    shape = {**SHAPE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **MODELS[kind], **more}
    config = CONFIG_MAPPING[kind](**shape)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    save_policy(Policy(model, characters(), 64), folder)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks saw of every model."""
    folder = tmp_path_factory.mktemp("shards")
    for kind in MODELS:
        make_model(kind, folder / "models" / kind)
    for name, twin in (("equal", True), ("unequal", False)):
        write_head_twice(folder / "models" / f"head_{name}", equal=twin)
    started = [
        subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(rank)], env={**os.environ}) for rank in range(2)
    ]
    assert [process.wait(300) for process in started] == [0, 0]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def write_head_twice(folder, *, equal):
    """A model whose config ties its head, and whose files have a head nevertheless."""
    make_model("qwen3", folder, tie_word_embeddings=True, num_hidden_layers=1)
    weights = load_file(folder / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"] = head if equal else head + 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", MODELS)
def test_a_rank_never_holds_more_than_its_shard_and_a_layer(ranks, kind):
    first = ranks[0][kind]
    assert first["layer"] < 0.15 * first["whole"]
    for seen in (rank[kind] for rank in ranks):
        # Shards are equally large: of five experts each rank stores three, or two and room for a third.
        assert seen["shard"] < (0.62 if kind == "qwen3_moe" else 0.51) * seen["whole"]
        assert seen["shard"] <= seen["peak"] <= seen["shard"] + seen["layer"]


@pytest.mark.parametrize("kind", [*MODELS, "head_equal", "head_unequal"])
def test_weights_and_gradients_are_bit_identical_to_those_of_the_whole_model(ranks, kind):
    for rank in ranks:
        assert rank[kind]["same_weights"]
        assert rank[kind]["same_gradients"]


def test_heads_are_tied_as_in_the_whole_model(ranks):
    tied = {kind: ranks[0][kind]["tied"] for kind in ranks[0]}
    assert tied["gpt2"] == tied["head_equal"] == ["lm_head.weight"]
    assert tied["qwen3"] == tied["head_unequal"] == []
