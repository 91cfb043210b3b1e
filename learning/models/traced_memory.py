"""Shapes of architectures without formulas of their own, measured on transformers' forward over tensors without data.

A model is made of torch's fake tensors: its parameters are counted, and a pass over a row tells what is kept for the
backward pass and what its cache holds. Nothing is computed, but importing torch and transformers takes seconds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from learning.memory_model.forward import FULL, HALF, Forward
from learning.memory_model.shape import BLOCK, Adapters, Shape
from learning.models.padded import get_body
from schemas.errors import StepError

LONGEST = 512
"""Tokens of the longest row that is measured; longer ones follow from two lengths as a·L + b·L²."""
UNMEASURABLE = (TypeError, AttributeError, LookupError, ValueError, RuntimeError, NotImplementedError)
"""Exceptions of models whose forward reads the values of tensors."""


@dataclass(frozen=True)
class TracedShape(Shape):
    """A decoder of any architecture: counts of its parameters and a function that measures a row."""

    total: int = 0
    body: int = 0
    blocks: int = 0
    """Parameters of all layers."""
    named: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Inputs and outputs of linear modules but the head."""
    measure: Callable[[int, int, bool], "Row"] = lambda length, size, frozen: Row(0, 0)

    @property
    def layer_parameters(self) -> int:
        """Of one layer, on average."""
        return self.blocks // self.layers

    @property
    def body_parameters(self) -> int:
        """Without the head of a language model."""
        return self.body

    @property
    def parameters(self) -> int:
        """Of a language model; a tied head is its embedding."""
        return self.total

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Inputs and outputs of linear modules."""
        return list(self.named.values()) or [(self.width, self.width)]

    @property
    def modules(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of linear modules, embedding and head."""
        ends = {"model.embed_tokens": (self.width, self.vocabulary), "lm_head": (self.width, self.vocabulary)}
        return {**self.named, **ends}

    def quantised_matrices(self, saved: tuple[str, ...]) -> list[int]:
        """Return the weights of each linear module whose rows are whole blocks."""
        kept = [sides for name, sides in self.named.items() if name.rpartition(".")[2] not in saved]
        return [inputs * outputs for inputs, outputs in kept if not inputs % BLOCK]

    def adapter_parameters(self, chosen: Adapters) -> int:
        """Return the parameters that are trained with adapters, as for other shapes."""
        saved = {n for n in self.modules for name in chosen.saved if n == name or n.endswith(f".{name}")}
        adapted = [
            sides
            for name, sides in self.named.items()
            if name not in saved and (chosen.targets == "all-linear" or chosen.adapts(name))
        ]
        whole = sum(a * b for a, b in (self.modules[name] for name in saved))
        return whole + sum(chosen.rank * (a + b) + chosen.dora * b for a, b in adapted)

    def cache_bytes(self, tokens: int, size: int) -> int:
        """Return the bytes that a row of so many tokens holds in the model's cache."""
        return self._row(tokens, size).cached

    def kept_bytes(self, tokens: int, size: int, *, frozen: bool) -> int:
        """Return the bytes that a row of so many tokens keeps for the backward pass of the body."""
        return self._row(tokens, size, frozen).kept

    def _row(self, tokens: int, size: int, frozen: bool = False) -> "Row":
        if tokens <= LONGEST:
            return self.measure(tokens, size, frozen)
        half, whole = (self.measure(length, size, frozen) for length in (LONGEST // 2, LONGEST))
        return Row(*(_extend(a, b, tokens) for a, b in ((half.kept, whole.kept), (half.cached, whole.cached))))


@dataclass(frozen=True)
class Row:
    """Bytes that a row keeps for the backward pass, and in the model's cache."""

    kept: int
    cached: int


def _extend(half: int, whole: int, tokens: int) -> int:
    """Return a·L + b·L² through the values at LONGEST / 2 and LONGEST."""
    square = max(0, whole - 2 * half) * 2 / LONGEST**2
    return int((whole / LONGEST - square * LONGEST) * tokens + square * tokens**2)


@dataclass(frozen=True)
class TracedForward(Forward):
    """Bytes that transformers' own forward over padded rows holds: a shared prompt is computed for every completion."""

    shape: TracedShape

    @cached_property
    def _rows(self) -> list[tuple[int, int]]:
        """Rows, as (how many, length)."""
        families = [(n * g, p + length) for n, g, length, p in self.tokens.families]
        return families or list(self.tokens.roots)

    @cached_property
    def _kept(self) -> int:
        frozen = bool(self.how.rank)
        size = self.how.weight
        kept = sum(n * self.shape.kept_bytes(length, size, frozen=frozen) for n, length in self._rows)
        if frozen:
            inputs = sum(a + self.how.rank for a, _ in self.shape.named.values())
            kept += self._positions * FULL * inputs
        return kept

    @cached_property
    def _positions(self) -> int:
        return sum(n * length for n, length in self._rows)

    def layer(self, tokens: int | None = None) -> int:
        """Return what one layer keeps, on average."""
        copies = HALF * self.shape.layer_parameters if self.how.mixed else 0
        return self._kept // self.shape.layers + copies

    @cached_property
    def saved(self) -> int:
        """Return what all layers keep; with checkpointing the inputs of all but the last."""
        inputs = self._positions * self.shape.width * self.how.weight
        ends = min(self.tokens.needed, self._positions) * self.shape.width * self.how.weight
        return ends + (self.shape.layers - 1) * (inputs if self.checkpointing else self.layer()) + self.layer()

    @cached_property
    def backward(self) -> int:
        """Bytes besides the saved tensors while a layer's gradients are computed: half of what one layer keeps."""
        return self.layer() // 2

    @property
    def glance(self) -> int:
        """The most that a pass without a gradient holds at a time."""
        return max(self.layer() + 2 * self._positions * self.shape.width * self.how.weight, self.logits)


def trace_shape(config: Mapping[str, Any]) -> TracedShape:
    """Return the shape of a complete configuration of transformers, by its text model without data.

    Raise StepError if the model cannot be made or its forward needs the values of tensors.
    """
    kind = str(config.get("model_type"))
    keys = {name: value for name, value in config.items() if name not in ("model_type", "dtype")}

    @cache
    def measure(length: int, size: int, frozen: bool) -> Row:
        with FakeTensorMode():
            model = _make_model(kind, keys, HALF if has_experts else size)
            return _measure_row(model, length, size, frozen=frozen)

    try:
        with FakeTensorMode():
            model = _make_model(kind, keys, FULL)
        has_experts = any(p.ndim == 3 and ".experts." in name for name, p in model.named_parameters())
        measure(8, FULL, False)
    except UNMEASURABLE as error:
        raise StepError(f"memory of a {kind} model is not known: {type(error).__name__} without data") from error
    own, head = model.config.get_text_config(), model.get_output_embeddings()
    embedding = model.get_input_embeddings().weight
    layers = int(getattr(own, "num_hidden_layers", None) or own.to_dict()["num_hidden_layers"])
    blocks = _count(max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=_count))
    named = {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    tied = head.weight is embedding
    total = _count(model)
    return TracedShape(
        layers=layers,
        width=embedding.shape[1],
        inner=max((max(sides) for sides in named.values()), default=embedding.shape[1]),
        heads=int(getattr(own, "num_attention_heads", None) or 1),
        kv_heads=int(getattr(own, "num_key_value_heads", None) or 1),
        head=int(getattr(own, "head_dim", None) or 1),
        vocabulary=embedding.shape[0],
        tied=tied,
        total=total,
        body=total - (0 if tied else _count(head)),
        blocks=blocks,
        named=named,
        measure=measure,
    )


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _make_model(kind: str, keys: Mapping[str, Any], size: int) -> Any:
    dtype = torch.float32 if size == FULL else torch.bfloat16
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**keys), dtype=dtype).eval()


def _measure_row(model: Any, length: int, size: int, *, frozen: bool) -> Row:
    """Return what the pass over one row keeps; `frozen`: as if only what comes before the layers were trained.

    Torch multiplies experts without data in bfloat16 only: numbers in bfloat16 count as numbers of `size` bytes.
    """
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    model.requires_grad_(not frozen)
    model.get_input_embeddings().requires_grad_(True)
    ids_1L = torch.zeros(1, length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = get_body(model)(input_ids=ids_1L, use_cache=False)
    saved = sum(_count_bytes(t, size) for key, t in kept.items() if key not in weights)
    del out
    with torch.no_grad():
        out = get_body(model)(input_ids=ids_1L, use_cache=True)
    held = {t.untyped_storage()._cdata: _count_bytes(t, size) for t in _walk_tensors(out, set())}
    hidden = out[0].untyped_storage()
    held.pop(hidden._cdata, None)
    return Row(saved, sum(held.values()))


def _count_bytes(tensor: Tensor, size: int) -> int:
    held = tensor.untyped_storage().nbytes()
    return held // HALF * size if tensor.dtype == torch.bfloat16 else held


def _walk_tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors in the attributes and elements of an object."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _walk_tensors(part, seen)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _walk_tensors(part, seen)
    elif type(value).__module__.startswith("transformers.cache_utils"):
        yield from _walk_tensors(vars(value), seen)
