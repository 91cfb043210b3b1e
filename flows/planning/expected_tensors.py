"""The tensors that a model's configuration needs, with their shapes, as they are named in published checkpoints.

They are written down, because making a model without values takes seconds of imports. `tests/flows/planning` compares
every family and option with what transformers saves. Families that are not here are compared where they are loaded.

Sizes: h width, i width of the feed-forward block, v vocabulary, d width of a head, q and k widths of queries and keys,
e experts, m width of an expert, s width of the shared expert, c length of a convolution; 2i is twice i.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from schemas.base import JsonObject

Shape = tuple[int, ...]
Part = Mapping[str, str]
"""The sizes of tensors, by the name inside a layer; `*` stands for the number of every expert."""
LARGEST, DEEPEST = 1 << 24, 10_000
"""Sizes and numbers of layers from which on a configuration is not judged."""

NORMS = {"input_layernorm": "h", "post_attention_layernorm": "h"}
AROUND = {**NORMS, "pre_feedforward_layernorm": "h", "post_feedforward_layernorm": "h"}
AFTER = {"post_attention_layernorm": "h", "post_feedforward_layernorm": "h"}
ATTENTION = {
    "self_attn.q_proj": "q h",
    "self_attn.k_proj": "k h",
    "self_attn.v_proj": "k h",
    "self_attn.o_proj": "h q",
}
HEAD_NORMS = {"self_attn.q_norm": "d", "self_attn.k_norm": "d"}
WIDE_NORMS = {"self_attn.q_norm": "q", "self_attn.k_norm": "k"}
MLP = {"mlp.gate_proj": "i h", "mlp.up_proj": "i h", "mlp.down_proj": "h i"}
FUSED_MLP = {"mlp.gate_up_proj": "2i h", "mlp.down_proj": "h i"}
EXPERTS = {
    "mlp.gate": "e h",
    "mlp.experts.*.gate_proj": "m h",
    "mlp.experts.*.up_proj": "m h",
    "mlp.experts.*.down_proj": "h m",
}
SHARED_EXPERT = {
    "mlp.shared_expert.gate_proj": "s h",
    "mlp.shared_expert.up_proj": "s h",
    "mlp.shared_expert.down_proj": "h s",
    "mlp.shared_expert_gate": "1 h",
}
QKV, QKVO, WHOLE_MLP = tuple(ATTENTION)[:3], tuple(ATTENTION), tuple(MLP)


def _list_one_kind(config: JsonObject, layers: int) -> list[str]:
    return ["block"] * layers


def _list_sparse(config: JsonObject, layers: int) -> list[str]:
    """Return which layers of a Qwen mixture of experts are dense."""
    dense, every = config.get("mlp_only_layers"), config.get("decoder_sparse_step")
    dense, every = dense if isinstance(dense, list) else [], every if isinstance(every, int) and every > 0 else 1
    return ["dense" if n in dense or (n + 1) % every else "sparse" for n in range(layers)]


def _list_convolutions(config: JsonObject, layers: int) -> list[str]:
    kinds, full = config.get("layer_types"), config.get("full_attn_idxs")
    if isinstance(kinds, list):
        return [str(kind) for kind in kinds]
    return ["full_attention" if not isinstance(full, list) or n in full else "conv" for n in range(layers)]


@dataclass(frozen=True)
class Family:
    """The tensors of a model type: those of a layer by its kind, and the modules with a bias by their option."""

    parts: Mapping[str, Part]
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: JsonObject = field(default_factory=dict)
    """What transformers supplies where a configuration has no such key; with `head_dim` h / heads is no default."""
    list_kinds: Callable[[JsonObject, int], list[str]] = _list_one_kind
    norm: str = "norm"
    """The last norm; empty for one without a weight."""
    optional: Mapping[str, Part] = field(default_factory=dict)
    """Tensors of every layer, by the option that adds them."""


def _dense(*parts: Part, **options: tuple[str, ...]) -> Family:
    return Family({"block": _join(*parts)}, options)


def _join(*parts: Part) -> Part:
    return {name: sizes for part in parts for name, sizes in part.items()}


GEMMA = {"head_dim": 256, "tie_word_embeddings": True}
GLM: JsonObject = {"head_dim": 128, "attention_bias": True}
ALWAYS = "always"
FAMILIES = {
    "llama": _dense(NORMS, ATTENTION, MLP, attention_bias=QKVO, mlp_bias=WHOLE_MLP),
    "mistral": _dense(NORMS, ATTENTION, MLP),
    "ministral": _dense(NORMS, ATTENTION, MLP),
    "qwen2": _dense(NORMS, ATTENTION, MLP, always=QKV),
    "qwen3": Family({"block": _join(NORMS, ATTENTION, HEAD_NORMS, MLP)}, {"attention_bias": QKVO}, {"head_dim": 128}),
    "granite": _dense(NORMS, ATTENTION, MLP, attention_bias=QKVO, mlp_bias=WHOLE_MLP),
    "smollm3": Family(
        {"block": _join(NORMS, ATTENTION, MLP)},
        {"attention_bias": QKVO, "mlp_bias": WHOLE_MLP},
        {"tie_word_embeddings": True},
    ),
    "gemma": Family({"block": _join(NORMS, ATTENTION, MLP)}, {"attention_bias": QKVO}, GEMMA),
    "gemma2": Family({"block": _join(AROUND, ATTENTION, MLP)}, {"attention_bias": QKVO}, GEMMA),
    "gemma3_text": Family({"block": _join(AROUND, ATTENTION, HEAD_NORMS, MLP)}, {"attention_bias": QKVO}, GEMMA),
    "phi3": _dense(NORMS, {"self_attn.qkv_proj": "q+2k h", "self_attn.o_proj": "h q"}, FUSED_MLP),
    "olmo": Family({"block": _join(ATTENTION, MLP)}, {"attention_bias": QKVO}, norm=""),
    "olmo2": _dense(AFTER, ATTENTION, WIDE_NORMS, MLP, attention_bias=QKVO),
    "olmo3": _dense(AFTER, ATTENTION, WIDE_NORMS, MLP, attention_bias=QKVO),
    "olmoe": _dense(NORMS, ATTENTION, WIDE_NORMS, EXPERTS, attention_bias=QKVO),
    "cohere": Family(
        {"block": _join({"input_layernorm": "h"}, ATTENTION, MLP)},
        {"attention_bias": QKVO},
        {"tie_word_embeddings": True},
        optional={"use_qk_norm": {"self_attn.q_norm": "heads d", "self_attn.k_norm": "groups d"}},
    ),
    "cohere2": Family(
        {"block": _join({"input_layernorm": "h"}, ATTENTION, MLP)},
        {"attention_bias": QKVO},
        {"tie_word_embeddings": True},
    ),
    "glm": Family({"block": _join(NORMS, ATTENTION, FUSED_MLP)}, {"attention_bias": QKV}, GLM),
    "glm4": Family(
        {"block": _join(NORMS, {"post_self_attn_layernorm": "h", "post_mlp_layernorm": "h"}, ATTENTION, FUSED_MLP)},
        {"attention_bias": QKV},
        GLM,
    ),
    "seed_oss": Family(
        {"block": _join(NORMS, ATTENTION, MLP)},
        {"attention_bias": QKV, "attention_out_bias": QKVO[3:], "mlp_bias": WHOLE_MLP},
        GLM,
    ),
    "mixtral": _dense(
        NORMS,
        ATTENTION,
        {
            "block_sparse_moe.gate": "e h",
            "block_sparse_moe.experts.*.w1": "i h",
            "block_sparse_moe.experts.*.w2": "h i",
            "block_sparse_moe.experts.*.w3": "i h",
        },
    ),
    "qwen2_moe": Family(
        {
            "dense": _join(NORMS, ATTENTION, MLP),
            "sparse": _join(NORMS, ATTENTION, EXPERTS, SHARED_EXPERT),
        },
        {"qkv_bias": QKV},
        {"qkv_bias": True},
        _list_sparse,
    ),
    "qwen3_moe": Family(
        {
            "dense": _join(NORMS, ATTENTION, HEAD_NORMS, MLP),
            "sparse": _join(NORMS, ATTENTION, HEAD_NORMS, EXPERTS),
        },
        {"attention_bias": QKVO},
        list_kinds=_list_sparse,
    ),
    "gpt_oss": Family(
        {
            "block": {
                **NORMS,
                **ATTENTION,
                "self_attn.sinks.": "heads",
                "mlp.router": "e h",
                "mlp.router.bias.": "e",
                "mlp.experts.gate_up_proj.": "e h 2i",
                "mlp.experts.gate_up_proj_bias.": "e 2i",
                "mlp.experts.down_proj.": "e i h",
                "mlp.experts.down_proj_bias.": "e h",
            }
        },
        {"attention_bias": QKVO},
        {"head_dim": 64, "attention_bias": True},
    ),
    "lfm2": Family(
        {
            kind: {
                "operator_norm": "h",
                "ffn_norm": "h",
                "feed_forward.w1": "i h",
                "feed_forward.w2": "h i",
                "feed_forward.w3": "i h",
                **mixer,
            }
            for kind, mixer in {
                "conv": {"conv.conv": "h 1 c", "conv.in_proj": "3h h", "conv.out_proj": "h h"},
                "full_attention": {
                    **{name.replace("o_proj", "out_proj"): sizes for name, sizes in ATTENTION.items()},
                    "self_attn.q_layernorm": "d",
                    "self_attn.k_layernorm": "d",
                },
            }.items()
        },
        {"conv_bias": ("conv.conv", "conv.in_proj", "conv.out_proj")},
        {"tie_word_embeddings": True, "conv_L_cache": 3, "block_auto_adjust_ff_dim": True},
        _list_convolutions,
        "embedding_norm",
    ),
}
"""By model type. A name that ends with a dot is that of a parameter; any other one of a module with a `weight`."""
HEAD = "lm_head.weight"


def expect_tensors(config: JsonObject) -> dict[str, Shape]:
    """Return the shapes of the tensors that a configuration needs, without the prefix of the body.

    A shape is empty where the configuration leaves it to the defaults of its family. Return nothing for a family that
    is not judged. Of models that tie their head to the embeddings the head is left out.
    """
    family, layers = FAMILIES.get(str(config.get("model_type"))), config.get("num_hidden_layers")
    if family is None or type(layers) is not int or not 0 < layers < DEEPEST:
        return {}
    config = {**family.defaults, **config}
    kinds, sizes = family.list_kinds(config, layers), _read_sizes(config, family)
    if len(kinds) < layers or not set(kinds) <= family.parts.keys():
        return {}
    shapes = {"embed_tokens.weight": "v h"} | ({f"{family.norm}.weight": "h"} if family.norm else {})
    if not config.get("tie_embedding", config.get("tie_word_embeddings")):
        shapes[HEAD] = "v h"
    parts = {kind: dict(_list_tensors(family, kind, config, sizes["e"])) for kind in set(kinds)}
    shapes |= {f"layers.{n}.{name}": text for n in range(layers) for name, text in parts[kinds[n]].items()}
    known = {text: _measure(text, sizes) for text in set(shapes.values())}
    return {name: known[text] for name, text in shapes.items()}


def _list_tensors(family: Family, kind: str, config: JsonObject, experts: int) -> Iterator[tuple[str, str]]:
    """Yield the tensors of a layer, experts one by one, with their sizes."""
    part = _join(family.parts[kind], *(more for option, more in family.optional.items() if config.get(option)))
    biased = {name for option, names in family.biases.items() if _has(config, option) for name in names}
    for name, sizes in part.items():
        for own in [name.replace("*", str(n)) for n in range(experts)] if "*" in name else [name]:
            yield (own[:-1] if own.endswith(".") else f"{own}.weight"), sizes
            if name in biased:
                yield f"{own}.bias", sizes.partition(" ")[0]


def _has(config: JsonObject, option: str) -> bool:
    return option == ALWAYS or bool(config.get(option))


def _measure(text: str, sizes: Mapping[str, int]) -> Shape:
    """Return a shape from the letters of its sizes; an empty one if a size is unknown."""
    shape = tuple(sizes[size] for size in text.split())
    return shape if all(shape) else ()


def _read_sizes(config: JsonObject, family: Family) -> dict[str, int]:
    """Return the sizes of a configuration, 0 for those that it does not state."""
    h, heads, v = (_number(config.get(key)) for key in ("hidden_size", "num_attention_heads", "vocab_size"))
    groups = _number(config.get("num_key_value_heads", 0), heads)
    derived = h // heads if heads and "head_dim" not in family.defaults else 0
    d = _number(config.get("head_dim"), derived)
    i = _adjust_width(config) if config["model_type"] == "lfm2" else _number(config.get("intermediate_size"))
    experts = _number(config.get("num_local_experts", config.get("num_experts")))
    m = i if config["model_type"] == "olmoe" else _number(config.get("moe_intermediate_size"))
    s, c = _number(config.get("shared_expert_intermediate_size")), _number(config.get("conv_L_cache"))
    q, k = heads * d, groups * d
    both = q + 2 * k if q and k else 0
    more = {"2i": 2 * i, "3h": 3 * h, "q+2k": both, "heads": heads, "groups": groups, "1": 1}
    return {"h": h, "i": i, "v": v, "d": d, "q": q, "k": k, "e": experts, "m": m, "s": s, "c": c, **more}


def _number(value: object, without: int = 0) -> int:
    """Return a size, another one in the place of None, and 0 for what is no size."""
    if value is None:
        return without
    return value if type(value) is int and 0 < value < LARGEST else 0


def _adjust_width(config: JsonObject) -> int:
    """Return the width of LFM2's feed-forward blocks, which it derives from the stated one."""
    width = _number(config.get("block_ff_dim", config.get("intermediate_size")))
    multiplier, multiple = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
    if not config["block_auto_adjust_ff_dim"] or not width:
        return width
    width = int(2 * width / 3)
    if multiplier is None:
        return width
    if not isinstance(multiplier, int | float) or type(multiple) is not int or multiple < 1:
        return 0
    return -(-int(multiplier * width) // multiple) * multiple
