"""Tiny random models of the architectures of transformers, two to four layers each.

`FAMILIES` gives for each model type what its config needs beside `COMMON`; a config ignores keys that it does not have.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from learning.models.forwards import correct_attention

VOCABULARY = 61
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
DENSE_MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
INDEXED = {"index_topk": 8, "index_n_heads": 4, "index_head_dim": 8}
"""Attention to chosen tokens: with few heads many scores are exactly 0, so that equal scores are common."""
WINDOW = {"sliding_window": 8}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {**WINDOW},
    "ministral": {**WINDOW},
    "gemma": {},
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 8},
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 8},
    "gemma4_text": {**WINDOW, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    "phi": {"num_key_value_heads": 4},
    "phi3": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {**WINDOW},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 8},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"n_head": 4, "n_layer": 2},
    "falcon": {"alibi": False, "head_dim": None},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4},
    "starcoder2": {},
    "stablelm": {},
    "nemotron": {},
    "smollm3": {},
    "glm": {},
    "glm4": {},
    "ernie4_5": {},
    "hunyuan_v1_dense": {},
    "seed_oss": {},
    "helium": {},
    "arcee": {},
    "apertus": {},
    "exaone4": {**WINDOW},
    "cohere": {},
    "cohere2": {**WINDOW},
    "granite": {"logits_scaling": 8.0, "attention_multiplier": 0.3},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "olmoe": EXPERTS,
    "granitemoe": EXPERTS,
    "phimoe": EXPERTS,
    "gpt_oss": {**EXPERTS, **WINDOW},
    "dbrx": {
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 256,
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
    },
    "deepseek_v2": {**MLA, "topk_method": "greedy"},
    "deepseek_v3": MLA,
    "glm4_moe": {**MLA},
    "ernie4_5_moe": {**EXPERTS, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1},
    "hunyuan_v1_moe": {**EXPERTS, "moe_topk": 2},
    "dots1": {**MLA},
    "llama4_text": {**EXPERTS, "attention_chunk_size": 16, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 1},
    "qwen3_next": {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 24},
    "qwen3_5_text": LINEAR,
    "mamba": {"state_size": 4},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2},
    "falcon_mamba": {"state_size": 4},
    "bamba": {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "attn_layer_indices": [1],
    },
    "jamba": {
        "num_experts": 4,
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8},
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 8,
        "hybrid_override_pattern": "M*",
    },
    "granitemoehybrid": {
        **EXPERTS,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "shared_intermediate_size": 24,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "minimax": {**EXPERTS, "layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    "recurrent_gemma": {"attention_window_size": 8, "lru_width": 32, "num_hidden_layers": 3},
    "rwkv": {"attention_hidden_size": 32, "context_length": 256},
    "persimmon": {},
    "biogpt": {},
    "bitnet": {},
    "diffllama": {},
    "jetmoe": {**EXPERTS, "kv_channels": 8},
    "afmoe": {**EXPERTS, **WINDOW},
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2},
    "axk1": MLA,
    "axk2": MLA,
    "cohere2_moe": {**EXPERTS, **WINDOW},
    "ctrl": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "dff": 48},
    "cwm": WINDOW,
    "deepseek_v32": {**MLA, **INDEXED},
    "deepseek_v4": {**MLA, "num_hidden_layers": 4},
    "doge": {},
    "exaone_moe": {**EXPERTS, **WINDOW},
    "flex_olmo": EXPERTS,
    "gemma3n_text": {
        **WINDOW,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": None,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_unified_text": {**WINDOW, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    "glm4_moe_lite": MLA,
    "glm_moe_dsa": {**MLA, **INDEXED},
    "gpt_neox_japanese": {"intermediate_multiple_size": 2},
    "granite_swa": WINDOW,
    "granitemoe_swa": {**EXPERTS, **WINDOW},
    "granitemoeshared": {**EXPERTS, "shared_intermediate_size": 24},
    "hrm_text": {},
    "hy_v3": EXPERTS,
    "hy_v4": {**MLA, **EXPERTS, **INDEXED},
    "hyperclovax": {},
    "inkling_text": {**EXPERTS, **WINDOW},
    "jais2": {},
    "laguna": {**EXPERTS, **WINDOW},
    "lfm2_moe": {**EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {
        **MLA,
        "num_layers": 2,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 24,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "mellum": {**EXPERTS, **WINDOW},
    "mimo_v2_flash": {**EXPERTS, **WINDOW, "v_head_dim": 8, "n_routed_experts": 4},
    "minicpm3": {**DENSE_MLA, "dim_model_base": 8},
    "minimax_m2": EXPERTS,
    "minimax_m3_vl_text": EXPERTS,
    "ministral3": WINDOW,
    "modernbert-decoder": {"local_attention": 8},
    "nanochat": {},
    "olmo_hybrid": LINEAR,
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "qwen3_5_moe_text": {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 24},
    "solar_open": {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "vaultgemma": {**WINDOW, "query_pre_attn_scalar": 8},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "youtu": DENSE_MLA,
    "zamba2": {
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_ngroups": 1,
        "layers_block_type": ["mamba", "hybrid"],
        "num_mem_blocks": 1,
        "attention_head_dim": 16,
    },
}

SCALE = {"mamba": 2, "mamba2": 2, "falcon_mamba": 2}
"""Factor of the initial weights; recurrences over a state grow faster."""


def make_family(kind, seed=0, **more):
    """Return a random model of a type, with weights large enough that attention matters."""
    torch.manual_seed(seed)
    keys = {**COMMON, **FAMILIES[kind], **more}
    config = AutoConfig.for_model(kind, **{key: value for key, value in keys.items() if value is not None})
    model = AutoModelForCausalLM.from_config(config).eval()
    correct_attention(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.mul_(SCALE.get(kind, 4))
            elif "sink" in name:
                parameter.normal_()
    return model
