"""The tensors of a checkpoint compared with its configuration, by the headers of its files alone.

Only architectures are judged whose tensors are written down (`expected_tensors`); those of others are compared where
the model is loaded. Towers, buffers and further prediction heads are of no concern.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from flows.planning.expected_tensors import HEAD, Shape, expect_tensors
from learning.models.gguf_header import read_gguf_tensors
from learning.models.model_files import list_weight_files, read_json_object
from schemas.base import JsonObject

COUNTS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)
"""Keys of config.json that are numbers in every architecture, or lists of them."""
BODY, EMBEDDINGS = "model.", "embed_tokens.weight"
"""The usual prefix of all tensors but the head, and the name behind it of one that every model has."""
LAYER = re.compile(r"(?:model\.)?layers\.\d+\.")
POSITIVE = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""Keys of config.json that no architecture has at 0."""
GGUF_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_experts",
}
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
        if isinstance(part, dict) and (key := next((key for key in POSITIVE if _is_below_one(part.get(key))), None)):
            return f"config.json: `{place}{key}` is {part[key]}, at least 1 is needed; fetch the file again"
    try:
        shapes, listed = _read_shapes(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # reported with the files
    if lost := sorted(listed - shapes.keys()):
        return f"the index names {lost[0]}{_and_more(lost)}, which no file of weights has; fetch them again"
    if config.get("quantization_config"):
        return None
    return _compare_with_config(config, shapes)


def _is_below_one(value: object) -> bool:
    return isinstance(value, int | float) and value < 1


def _compare_with_config(config: JsonObject, shapes: Mapping[str, Shape]) -> str | None:
    """Return which tensor of a safetensors checkpoint is missing or has another shape."""
    text = config.get("text_config")
    wanted = expect_tensors(text if isinstance(text, dict) else config)
    if any(".experts.0." in name for name in wanted) and any(".experts.gate_up_proj" in name for name in shapes):
        return None  # the names that transformers uses in memory, which it reads too
    prefixes = [name.removesuffix(EMBEDDINGS) for name in shapes if name.endswith(EMBEDDINGS)]
    if isinstance(text, dict):
        wanted.pop(HEAD, None)  # towers decide where it lies
        return _compare(wanted, shapes, "config.json", lambda name: prefixes[0] + name) if len(prefixes) == 1 else None
    prefix = "" if "" in prefixes else BODY

    def rename(name: str) -> str:
        return name if name == HEAD else prefix + name

    return _compare(wanted, shapes, "config.json", rename) or _find_unused({rename(name) for name in wanted}, shapes)


def _find_unused(wanted: set[str], shapes: Mapping[str, Shape]) -> str | None:
    """Return which tensor belongs to a module that is wanted without it, or to a layer beyond the last."""
    modules = {name.rpartition(".")[0] for name in wanted}
    layers = {layer[0] for name in wanted if (layer := LAYER.match(name))}
    for name in sorted(shapes.keys() - wanted if layers else ()):
        layer = LAYER.match(name)
        if name.rpartition(".")[0] in modules or (layer and layer[0] not in layers):
            advice = "correct config.json, or save the checkpoint again"
            return f"weights do not fit config.json: it makes a model without {name}; {advice}"
    return None


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
    wanted = expect_tensors({**config, "model_type": family, "vocab_size": rows or 1, "tie_word_embeddings": True})
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
    if missing == [rename(EMBEDDINGS)] and HEAD in shapes and HEAD not in wanted:
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
