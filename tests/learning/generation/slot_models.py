"""Small models whose attention has windows, caps or sinks, for tests of decoding over slots."""

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig, MistralConfig, Qwen3Config

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "plain": (Qwen3Config, {}),
    "window": (MistralConfig, {"sliding_window": 9}),
    "caps": (Gemma2Config, {"sliding_window": 9, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}),
    "sinks": (GptOssConfig, {"sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def make_model(family: str):
    torch.manual_seed(0)
    config, more = FAMILIES[family]
    model = AutoModelForCausalLM.from_config(config(**SHAPE, **more, eos_token_id=None), attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model.eval()
