"""Saved weights have the names of published checkpoints, which vLLM, SGLang and llama.cpp expect, and load strictly."""

import pytest
import torch
from safetensors import safe_open
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from learning.data.tokenizers import characters
from learning.models.policy import Policy, save_policy

IDS = torch.arange(6, 20)[None]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 120,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
STATE = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "num_key_value_heads": 2}
FAMILIES = {
    "gpt_neox": ({}, ["gpt_neox.embed_in.weight", "embed_out.weight"]),
    "qwen3_moe": (
        {**EXPERTS, "moe_intermediate_size": 32, "head_dim": 16},
        ["model.layers.0.mlp.experts.3.gate_proj.weight", "model.layers.0.mlp.gate.weight"],
    ),
    "mixtral": (
        {"num_local_experts": 4, "num_key_value_heads": 2},
        ["model.layers.1.block_sparse_moe.experts.3.w1.weight", "model.layers.0.block_sparse_moe.gate.weight"],
    ),
    "olmoe": (EXPERTS, ["model.layers.0.mlp.experts.3.down_proj.weight"]),
    "deepseek_v3": (
        {
            **LATENT,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "num_key_value_heads": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        ["model.layers.1.mlp.experts.3.up_proj.weight", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"],
    ),
    "nemotron_h": ({**STATE, "num_hidden_layers": 3}, ["backbone.embeddings.weight", "backbone.layers.0.mixer.A_log"]),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_saved_family_has_its_published_names(kind, tmp_path):
    more, wanted = FAMILIES[kind]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**{**SIZES, **more})).float().eval()
    save_policy(Policy(model, characters(), 128), tmp_path / "model")
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert set(wanted) <= names
    assert not any(name.endswith(("gate_up_proj", "experts.down_proj")) for name in names)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)
