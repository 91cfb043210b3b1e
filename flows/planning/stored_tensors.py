"""The tensors of a checkpoint compared with its configuration, by the headers of its files alone.

Only architectures are judged whose tensors follow from a few sizes; those of others are compared where the model is
loaded. Tensors that the configuration does not need (towers, buffers, further prediction heads) are of no concern.

Sizes: H width, I width of the feed-forward block, V vocabulary, D width of a head, Q and K widths of queries and keys.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from learning.models.gguf_header import read_gguf_tensors
from learning.models.model_files import list_weight_files, read_json_object
from schemas.base import JsonObject

Shape = tuple[int, ...]
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
COUNTS = (*SIZES, "num_key_value_heads", "head_dim", "max_position_embeddings")
"""Keys of config.json that are numbers in every architecture, or lists of them."""
LARGEST, DEEPEST = 1 << 24, 10_000
"""Sizes and numbers of layers from which on a configuration is not judged."""
GGUF_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_experts",
}
OPTIONAL_BIASES = {"llama": True, "granite": True, "smollm3": True, "qwen3": False}
"""Families with the option `attention_bias`, and whether they have `mlp_bias` too."""
FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "granite", "smollm3"})
GGUF_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})
GGUF_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def find_wrong_tensor(folder: Path) -> str | None:
    """Return which tensor of a model's folder is missing or has another shape; None if none is known to be wrong."""
    config = read_json_object(folder / "config.json")
    if not config:
        return next((text for file in sorted(folder.glob("*.gguf")) if (text := _find_wrong_in_gguf(file))), None)
    for part, place in ((config, ""), (config.get("text_config"), "text_config.")):
        if isinstance(part, dict) and (key := next((key for key in COUNTS if isinstance(part.get(key), str)), None)):
            return f"config.json: `{place}{key}` is the text {part[key]!r}, not a number; write it without quotes"
    try:
        shapes, listed = _read_shapes(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # reported with the files
    if lost := sorted(listed - shapes.keys()):
        return f"the index names {lost[0]}{_and_more(lost)}, which no file of weights has; fetch them again"
    if config.get("quantization_config"):
        return None
    prefix = "" if "embed_tokens.weight" in shapes else "model."
    return _compare(expect_tensors(config), shapes, "config.json", lambda name: prefix + name)


def expect_tensors(config: JsonObject) -> dict[str, Shape]:
    """Return the shapes of the tensors that a configuration needs, without the prefix of the body.

    A shape is empty where the configuration leaves it to the defaults of its family. Return nothing for a family that
    is not judged.
    """
    family, groups, width = config.get("model_type"), config.get("num_key_value_heads", 0), config.get("head_dim")
    sizes = [size for key in SIZES if type(size := config.get(key)) is int and 0 < size < LARGEST]
    h, i, layers, heads, v = sizes if len(sizes) == len(SIZES) else (0,) * len(SIZES)
    if (
        family not in FAMILIES
        or not 0 < layers < DEEPEST
        or any(type(n) not in (int, type(None)) for n in (groups, width))
    ):
        return {}
    d = width or (0 if family == "qwen3" else h // heads)
    q, k = heads * d, (heads if groups is None else groups) * d
    block: dict[str, Shape] = {
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "self_attn.q_proj.weight": (q, h),
        "self_attn.k_proj.weight": (k, h),
        "self_attn.v_proj.weight": (k, h),
        "self_attn.o_proj.weight": (h, q),
        "mlp.gate_proj.weight": (i, h),
        "mlp.up_proj.weight": (i, h),
        "mlp.down_proj.weight": (h, i),
    }
    block |= {f"self_attn.{name}_norm.weight": (d,) for name in "qk" if family == "qwen3"}
    block |= {name.replace(".weight", ".bias"): block[name][:1] for name in _list_biased(config, block)}
    shapes = {"embed_tokens.weight": (v, h), "norm.weight": (h,)}
    shapes |= {f"layers.{n}.{name}": shape for n in range(layers) for name, shape in block.items()}
    return {name: shape if all(shape) else () for name, shape in shapes.items()}


def _list_biased(config: JsonObject, block: Mapping[str, Shape]) -> Iterator[str]:
    """Yield the matrices of a block that have a bias."""
    family = str(config["model_type"])
    for name in block:
        if name.startswith("self_attn.") and name.endswith("_proj.weight"):
            always = family == "qwen2" and "o_proj" not in name
            if always or (family in OPTIONAL_BIASES and config.get("attention_bias")):
                yield name
        elif name.startswith("mlp.") and OPTIONAL_BIASES.get(family) and config.get("mlp_bias"):
            yield name


def _find_wrong_in_gguf(file: Path) -> str | None:
    """Return which tensor of a GGUF file does not fit the sizes that the file states."""
    try:
        values, tensors = read_gguf_tensors(file)
    except (OSError, ValueError, OverflowError, struct.error):
        return None  # reported with the file
    family = values.get("general.architecture")
    config = {ours: values.get(f"{family}.{theirs}") for theirs, ours in GGUF_SIZES.items()}
    if family not in GGUF_FAMILIES or config.pop("num_experts") or not tensors:
        return None
    shapes = {name: tuple(reversed(sides)) for name, sides in tensors.items()}  # a file lists the innermost first
    rows = shapes.get("token_embd.weight", (0,))[0]
    wanted = expect_tensors({**config, "model_type": family, "vocab_size": rows or 1})
    return _compare(wanted, shapes, file.name, _rename_for_gguf)


def _rename_for_gguf(name: str) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, layer, module = name.split(".", 2)
    module, _, kind = module.rpartition(".")
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def _compare(
    wanted: Mapping[str, Shape], shapes: Mapping[str, Shape], source: str, rename: Callable[[str], str]
) -> str | None:
    """Return which of the wanted tensors is missing or has another shape."""
    missing = [own for name in wanted if (own := rename(name)) not in shapes]
    if missing == [rename("embed_tokens.weight")] and "lm_head.weight" in shapes:
        missing = []  # a tied matrix, stored under its other name
    if missing:
        advice = "fetch or save the checkpoint again"
        return f"weights do not fit {source}: {missing[0]}{_and_more(missing)} is missing; {advice}"
    for name, shape in wanted.items():
        if shape and (actual := shapes.get(rename(name), shape)) != shape:
            text = f"{rename(name)} is {_format(actual)}, and the configuration makes it {_format(shape)}"
            return f"weights do not fit {source}: {text}; they are of different models"
    return None


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""


def _format(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _read_shapes(folder: Path) -> tuple[dict[str, Shape], set[str]]:
    """Return the shapes of all tensors of a model's files, and the names that its index lists."""
    shapes: dict[str, Shape] = {}
    for file in list_weight_files(folder):
        with file.open("rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
        shapes |= {name: tuple(one["shape"]) for name, one in header.items() if name != "__metadata__"}
    return shapes, set(read_json_object(folder / "model.safetensors.index.json").get("weight_map", {}))
