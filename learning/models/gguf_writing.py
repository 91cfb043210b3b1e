"""Model folders to GGUF files, as llama.cpp reads them: names, metadata and tokenizer of its own converter.

Only architectures are written whose files transformers reads back with the same logits (tests/learning/models).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from learning.models.gguf_tokenizer import add_tokenizer
from learning.models.policy import load_tokenizer
from learning.models.weights import Weights
from schemas.errors import StepError

GgufType = Literal["f32", "f16", "q8_0"]
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
}
"""llama.cpp's architecture by model_type."""
ROTATED = ("q_proj", "k_proj")
"""Projections whose rows llama.cpp's `llama` architecture stores in another order."""
EXPERT = ".mlp.experts."
F16_MAX = 65504.0
BLOCK = 32
"""Values per block of q8_0."""


def write_gguf(folder: Path, file: Path, kind: GgufType, name: str) -> dict[str, int]:
    """Write a model folder as a GGUF file; return the number of tensors, and of those kept in a wider type.

    One-dimensional tensors are f32, as llama.cpp expects; rows that q8_0 blocks do not divide are f16. Raise StepError
    for a model that a GGUF file cannot hold exactly as it is.
    """
    weights = Weights(folder)
    config = weights.config
    refuse_inexact(config)
    architecture = ARCHITECTURES[config["model_type"]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    wider = 0
    try:
        writer.add_name(name)
        add_shape(writer, config)
        add_tokenizer(writer, load_tokenizer(folder), config["vocab_size"])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        count = 0
        for tensor_name, tensor in iterate_tensors(weights):
            written = names.get_name(tensor_name, try_suffixes=(".weight", ".bias"))
            if written is None:
                raise StepError(f"GGUF: {config['model_type']} has no place for tensor {tensor_name} in llama.cpp")
            data, stored = _encode(tensor_name, tensor, kind)
            wider += kind == "q8_0" and tensor.ndim > 1 and stored != GGMLQuantizationType.Q8_0
            writer.add_tensor(written, data, raw_dtype=stored)
            count += 1
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return {"tensors": count, "wider": wider}


def refuse_inexact(config: Mapping[str, Any]) -> None:
    """Raise StepError for architectures and settings that a GGUF file would lose."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise StepError(
            f"GGUF: architecture {kind} cannot be written; {', '.join(ARCHITECTURES)} can. Export it with "
            "`posttrain export hf` and use llama.cpp's own converter"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = rope.get("rope_type", rope.get("type", "default"))
    if scaled != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise StepError(f"GGUF: rotary embeddings of type {scaled} cannot be written exactly, only the default ones")
    if config.get("use_sliding_window") or config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise StepError(f"GGUF: sliding windows and mixed dense layers of {kind} cannot be written exactly")
    if kind == "qwen3_moe" and not config.get("norm_topk_prob"):
        raise StepError("GGUF: llama.cpp normalises the weights of chosen experts, this model does not: norm_topk_prob")
    if config.get("hidden_act", "silu") != "silu":
        raise StepError(f"GGUF: llama.cpp computes {kind} with silu, not with {config['hidden_act']}")


def add_shape(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Write the sizes of a model."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "qwen3_moe":
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def iterate_tensors(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors in llama.cpp's order of rows; the experts of a layer as one tensor (experts, rows, columns)."""
    config = weights.config
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    experts: dict[str, list[str]] = {}
    for name in sorted(weights.entries):
        if EXPERT in name:
            layer, _, rest = name.partition(EXPERT)
            experts.setdefault(f"{layer}{EXPERT}{rest.partition('.')[2]}", []).append(name)
            continue
        tensor = weights.read(name)
        part = name.split(".")[-2]
        if config["model_type"] == "llama" and part in ROTATED:
            tensor = _interleave(tensor, heads if part == ROTATED[0] else groups)
        yield name, tensor
    for stacked, members in experts.items():
        by_number = sorted(members, key=lambda name: int(name.partition(EXPERT)[2].partition(".")[0]))
        yield stacked, torch.stack([weights.read(name) for name in by_number])


def _interleave(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of each head with the two halves that rotary embeddings pair interleaved."""
    size = tensor.shape[0] // heads // 2
    return tensor.view(heads, 2, size, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _encode(name: str, tensor: torch.Tensor, kind: GgufType) -> tuple[np.ndarray, GGMLQuantizationType]:
    data: np.ndarray = tensor.float().numpy()
    if tensor.ndim == 1 or kind == "f32":
        return data, GGMLQuantizationType.F32
    if kind == "q8_0" and tensor.shape[-1] % BLOCK == 0:
        return gguf.quants.quantize(data, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0
    if float(np.abs(data).max(initial=0.0)) > F16_MAX:
        raise StepError(f"GGUF: {name} has values beyond the range of f16; write it with --type f32")
    return data.astype(np.float16), GGMLQuantizationType.F16
