"""The forward pass that a model's configuration lets expect, read without torch; a check on the weights decides.

See `learning.models.packed.choose_forward`. `tests/models` compares both for every family.
"""

from collections.abc import Mapping
from typing import Any

KNOWN_LAYERS = frozenset({"full_attention", "attention", "sliding_attention"})
"""Layers that the forest computes, as transformers names them in `layer_types`."""
PADDED = {
    "positions that are not those of a path": (
        *("bloom", "codegen", "gptj", "mpt", "xglm"),
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
        *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "trocr", "xlm-roberta", "xlm-roberta-xl"),
        "xmod",
    ),
    "attention that cannot be replaced": (
        *("falcon", "gpt_neox_japanese", "moshi", "nemotron", "openai-gpt", "stablelm"),
        *("big_bird", "megatron-bert", "roformer"),
    ),
    "attention in chunks": ("llama4_text",),
    "attention within a window of another name": ("doge", "gpt_neo", "inkling_text", "recurrent_gemma"),
    "layers of state spaces": (
        *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba"),
        *("mamba", "mamba2", "nemotron_h", "rwkv", "zamba", "zamba2"),
    ),
    "layers of linear attention": (
        *("kimi_linear", "minimax", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "xlstm"),
    ),
    "layers of convolutions": ("lfm2", "lfm2_moe"),
    "a head of several layers": ("bert", "electra", "ernie", "modernbert-decoder", "rembert", "roc_bert"),
    "layers of convolutions and attention": ("zaya",),
    "attention to chosen tokens": ("axk2", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "hy_v4", "qwen4_exp_text"),
}
"""Model types with transformers' own forward over padded rows, by the reason."""


def expect_forward(config: Mapping[str, Any]) -> str:
    """Return `forest`, or `padded` with the reason, for a complete configuration of transformers."""
    config = config.get("text_config") or config
    for reason, kinds in PADDED.items():
        if config.get("model_type") in kinds:
            return f"padded ({reason})"
    if other := {str(kind) for kind in config.get("layer_types") or ()} - KNOWN_LAYERS:
        return f"padded (layers of {', '.join(sorted(other))})"
    return "padded (attention in chunks)" if config.get("attention_chunk_size") else "forest"
