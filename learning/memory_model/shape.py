"""What of a model's configuration decides how much memory it needs: read from `config.json`, without torch.

Shapes: C width, I inner width of the feed-forward block, H query heads, K key-value heads, D head size, V vocabulary.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.errors import StepError

ARCHITECTURES: dict[str, dict[str, bool]] = {
    "gemma": {},
    "gpt2": {"gated": False, "layer_norm": True, "query_bias": True, "output_bias": True, "inner_bias": True},
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "olmo2": {"wide_norms": True},
    "phi3": {},
    "qwen2": {"query_bias": True},
    "qwen3": {"head_norms": True},
    "qwen3_moe": {"head_norms": True},
    "smollm3": {},
}
"""Decoders whose tensors are known here, and how each differs from a Llama."""
BLOCK = 64
"""As in `learning.models.adapter_targets`."""
ALIASES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}


@dataclass(frozen=True)
class Adapters:
    """Adapters of a stage: their rank, the modules that have them, and those that are trained whole."""

    rank: int
    targets: list[str] | str = "all-linear"
    saved: tuple[str, ...] = ()
    dora: bool = False

    def adapts(self, name: str) -> bool:
        """Return whether a module gets adapters, by the rule of `learning.models.adapter_targets`."""
        if self.targets == "all-linear":
            return name.endswith("_proj")
        if isinstance(self.targets, str):
            return bool(re.fullmatch(self.targets, name))
        return any(name == target or name.endswith(f".{target}") for target in self.targets)


@dataclass(frozen=True)
class Shape:
    """A decoder: attention, a feed-forward block (or experts), norms before or after them."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    tied: bool
    gated: bool = True
    head_norms: bool = False
    """A norm of D weights on every query and key head, as in Qwen3."""
    wide_norms: bool = False
    """A norm of H·D (K·D) weights on all queries (keys) at once, as in OLMo 2."""
    layer_norm: bool = False
    """LayerNorm with a bias instead of RMSNorm."""
    query_bias: bool = False
    output_bias: bool = False
    inner_bias: bool = False
    positions: int = 0
    """Learnt positions, 0 where they are computed."""
    experts: int = 0
    """Experts of a layer, 0 for a dense block."""
    active: int = 0
    """Experts that a token uses."""
    window: int = 0
    """Keys that a token of a windowed layer sees; 0: no layer has a window."""
    windowed: int = 0
    """Layers with this window."""

    @property
    def queries(self) -> int:
        """H·D."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """K·D."""
        return self.kv_heads * self.head

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Inputs and outputs of every matrix of a layer but a router's."""
        block = [(self.width, self.inner)] * (2 if self.gated else 1) + [(self.inner, self.width)]
        attention = [(self.width, self.queries), *[(self.width, self.keys)] * 2, (self.queries, self.width)]
        return attention + block * max(self.experts, 1)

    @property
    def layer_parameters(self) -> int:
        """Of one layer."""
        matrices = sum(a * b for a, b in self.linears) + self.experts * self.width
        biases = self.query_bias * (self.queries + 2 * self.keys) + self.output_bias * self.width
        biases += self.inner_bias * (self.inner * (2 if self.gated else 1) + self.width)
        norms = 2 * self.width * (1 + self.layer_norm) + self.head_norms * 2 * self.head
        return matrices + biases + norms + self.wide_norms * (self.queries + self.keys)

    @property
    def body_parameters(self) -> int:
        """Without the head of a language model."""
        ends = (self.vocabulary + self.positions) * self.width + self.width * (1 + self.layer_norm)
        return ends + self.layers * self.layer_parameters

    @property
    def parameters(self) -> int:
        """Of a language model; a tied head is its embedding."""
        return self.body_parameters + (0 if self.tied else self.vocabulary * self.width)

    def cache_bytes(self, tokens: int, size: int) -> int:
        """Return the bytes that a row of so many tokens holds in a cache of keys and values."""
        return tokens * 2 * self.layers * self.keys * size

    @property
    def modules(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of linear modules, embedding and last norm, by their names in a Llama."""
        names = ["q_proj", "k_proj", "v_proj", "o_proj", *(["gate_proj"] if self.gated else []), "up_proj", "down_proj"]
        layer = {
            f"{'self_attn' if name[0] in 'qkvo' else 'mlp'}.{name}": sides
            for name, sides in zip(names, self.linears[: len(names)], strict=True)
        }
        ends = {"model.embed_tokens": (self.width, self.vocabulary), "model.norm": (self.width, 1)}
        inner = {f"model.layers.{i}.{name}": sides for i in range(self.layers) for name, sides in layer.items()}
        return {**inner, **ends, "lm_head": (self.width, self.vocabulary)}

    def quantised_matrices(self, saved: tuple[str, ...]) -> list[int]:
        """Return the weights of each matrix that `load_in_4bit` quantises, by the rule of `list_quantised`.

        GPT-2's matrices, experts and modules that are trained whole (`saved`) keep their weights.
        """
        if not self.gated:
            return []
        layers = {name: sides for name, sides in self.modules.items() if name.startswith("model.layers.")}
        return [
            inputs * outputs
            for name, (inputs, outputs) in layers.items()
            if not (inputs % BLOCK or (self.experts and ".mlp." in name))
            and not any(name == end or name.endswith(f".{end}") for end in saved)
        ]

    def adapter_parameters(self, chosen: Adapters) -> int:
        """Return the parameters that are trained with adapters.

        These are `rank`·(inputs + outputs) for each adapted matrix (Hu et al. 2021, section 4.1), with DoRA one more
        for each output (Liu et al. 2024), and the modules that are trained whole.
        """
        saved = {n for n in self.modules for name in chosen.saved if n == name or n.endswith(f".{name}")}
        total = sum(a * b for a, b in (self.modules[name] for name in saved))
        ends = {"model.embed_tokens", "lm_head"}
        if self.tied and ends <= saved:
            total -= self.vocabulary * self.width
        for name, (inputs, outputs) in self.modules.items():
            if name not in saved and chosen.adapts(name):
                total += chosen.rank * (inputs + outputs) + chosen.dora * outputs
        return total


def read_shape(config: Mapping[str, Any]) -> Shape:
    """Return the shape that a configuration of transformers describes. Raises StepError for an unknown architecture."""
    kind = str(config.get("model_type"))
    if kind not in ARCHITECTURES:
        raise StepError(f"memory of a {kind} model is not known; known are {', '.join(sorted(ARCHITECTURES))}")

    def number(name: str, default: int | None = None) -> int:
        value = config.get(name) or config.get(ALIASES.get(name, name)) or default
        if value is None:
            raise StepError(f"its configuration does not say `{name}`")
        return int(value)

    width, heads = number("hidden_size"), number("num_attention_heads")
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 0)
    inner = int(config.get("n_inner") or 4 * width) if kind == "gpt2" else number("intermediate_size")
    biased = bool(config.get("attention_bias"))
    traits = dict(ARCHITECTURES[kind])
    return Shape(
        layers=number("num_hidden_layers"),
        width=width,
        inner=int(config.get("moe_intermediate_size") or inner) if experts else inner,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head=number("head_dim", width // heads),
        vocabulary=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", kind in ("gemma", "gpt2", "smollm3"))),
        gated=traits.pop("gated", True),
        query_bias=traits.pop("query_bias", biased),
        output_bias=traits.pop("output_bias", biased),
        inner_bias=traits.pop("inner_bias", bool(config.get("mlp_bias"))),
        positions=number("max_position_embeddings", config.get("n_positions")) if kind == "gpt2" else 0,
        experts=experts,
        active=int(config.get("num_experts_per_tok") or 0),
        window=int(config.get("sliding_window") or 0) if _count_windowed(config) else 0,
        windowed=_count_windowed(config),
        **traits,
    )


def _count_windowed(config: Mapping[str, Any]) -> int:
    """Return how many layers of a complete configuration of transformers have a sliding window."""
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return 0
    kinds = config.get("layer_types")
    return int(config["num_hidden_layers"]) if kinds is None else list(kinds).count("sliding_attention")
