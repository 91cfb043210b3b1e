"""A model reduced while its forward passes are compared: few layers of each kind, a head of few tokens, narrow windows.

Layers of one kind execute the same code with other weights, and rows of the head are independent, so comparing all of
them would only repeat the comparison: it costs a few milliseconds instead of a pass over all weights.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from learning.models.forwards import find_blocks, full_precision, recompute_block

FEWEST_LAYERS = 4
"""Layers that are compared even if all are of one kind."""
HEAD_ROWS = 256
"""Tokens whose logits are compared."""
FINE = 2e-5
"""Largest difference in float32, relative to the largest value, that counts as rounding; exact families have 4e-6."""
COARSE, COARSE_MEAN = 5e-2, 2e-2
"""Largest difference in bfloat16, relative to the largest value, and root mean square of the differences, relative to
that of the values, where a comparison in float32 is not possible (shards, quantised weights)."""
PROVEN, PROVEN_MEAN = 0.5, 0.1
"""The same for what is equal in float32. Rounding may choose other experts for a token, or be large where sums cancel:
exact families have up to 0.12 and 0.04 (Granite MoE), more than some inexact ones (0.05 and 0.02, LFM2 MoE, Falcon H1).
"""
LEAK = 1e-3
"""Smallest change of a token in float32, relative to the largest value, that shows that it attends to later ones."""
SCALARS = (bool, int, float, str, type(None))
LOW = frozenset({torch.bfloat16, torch.float16})


@contextmanager
def reduced(model: Any) -> Iterator[None]:
    """Reduce a model, and restore it afterwards.

    It keeps its first layers up to the first of the last kind that appears, and FEWEST_LAYERS at least. A model without
    a single list of blocks keeps all, and one with another head than a plain linear layer, or a sharded one, keeps all
    tokens.
    """
    with ExitStack() as stack:
        stack.enter_context(_fewer_layers(model))
        stack.enter_context(_narrow_head(model))
        yield


@contextmanager
def _fewer_layers(model: nn.Module) -> Iterator[None]:
    blocks = find_blocks(model)
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and list(child) == blocks
    ]
    if not blocks or len(places) != 1:
        yield
        return
    [(parent, name)] = places
    layers = getattr(parent, name)
    setattr(parent, name, layers[: count_distinct_layers(blocks)])
    try:
        yield
    finally:
        setattr(parent, name, layers)


def count_distinct_layers(layers: list[nn.Module]) -> int:
    """Return how many layers from the first on contain one of every kind, FEWEST_LAYERS at least."""
    first: dict[Hashable, int] = {}
    for place, layer in enumerate(layers):
        first.setdefault(_kind(layer), place)
    return max(FEWEST_LAYERS, *(place + 1 for place in first.values()))


def _kind(layer: nn.Module) -> Hashable:
    """Return what distinguishes layers with different computations: classes, sizes, settings, functions and hooks."""
    return tuple((name, type(module), _settings(module)) for name, module in layer.named_modules())


def _settings(module: nn.Module) -> Hashable:
    values = {name: value for name, value in vars(module).items() if name not in ("layer_idx", "training")}
    plain = [(name, value) for name, value in values.items() if isinstance(value, SCALARS)]
    lists = [(name, repr(value)) for name, value in values.items() if isinstance(value, list | tuple)]
    functions = [(name, _identity(value)) for name, value in values.items() if callable(value)]
    sizes = [(name, p.shape, p.dtype) for name, p in module.named_parameters(recurse=False)]
    hooks = (len(module._forward_hooks), len(module._forward_pre_hooks))
    return (tuple(plain), tuple(lists), tuple(filter(_matters, functions)), tuple(sizes), hooks)


def _identity(function: Any) -> Hashable:
    """Return which function a bound or partial one calls, and with which arguments."""
    inner = getattr(function, "__func__", getattr(function, "func", function))
    return inner, repr((getattr(function, "args", ()), getattr(function, "keywords", {})))


def _matters(named: tuple[str, Hashable]) -> bool:
    """Return whether a function that is set on a module changes its results: gradient checkpointing does not."""
    return named != ("forward", _identity(recompute_block))


@contextmanager
def _narrow_head(model: Any) -> Iterator[None]:
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.out_features <= HEAD_ROWS or hasattr(head.weight, "full_tensor"):
        yield
        return
    whole = dict(head.named_parameters())
    for name, parameter in whole.items():
        setattr(head, name, nn.Parameter(parameter.detach()[:HEAD_ROWS], requires_grad=False))
    try:
        yield
    finally:
        for name, parameter in whole.items():
            setattr(head, name, parameter)


WINDOW = "sliding_window"
"""How transformers names a window in configs and modules; its masks and attention calls read it there."""
KNOWN_LAYERS = frozenset({"full_attention", "attention", "sliding_attention"})
"""Layers of attention that is limited by causality and windows alone, as transformers names them in `layer_types`."""


@contextmanager
def narrow_windows(model: Any, size: int) -> Iterator[None]:
    """Limit every window of a model to `size` keys, and restore it afterwards.

    A comparison on a few tokens could not tell apart windows that are wider than these tokens.
    """
    config = model.config.get_text_config()
    holders = [holder for holder in (config, *model.modules()) if _is_window(getattr(holder, WINDOW, None))]
    before = [getattr(holder, WINDOW) for holder in holders]
    for holder, window in zip(holders, before, strict=True):
        setattr(holder, WINDOW, min(size, window))
    try:
        yield
    finally:
        for holder, window in zip(holders, before, strict=True):
            setattr(holder, WINDOW, window)


def describe_unsupported_attention(config: Any, known: frozenset[str] = KNOWN_LAYERS) -> str:
    """Return what of a config's layers only the model's own forward computes; empty if all are `known`."""
    config = config.get_text_config()
    if kinds := set(getattr(config, "layer_types", None) or ()) - known:
        return f"layers of {', '.join(sorted(map(str, kinds)))}"
    if getattr(config, "attention_chunk_size", None):
        return "attention in chunks"
    for name, value in sorted(config.to_dict().items()):
        other = "window" in name and name != WINDOW and not name.endswith(("pattern", "layers"))
        if other and _is_window(value):
            return f"attention within `{name}`"
    return ""


def _is_window(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


@contextmanager
def in_float32(model: Any) -> Iterator[bool]:
    """Let a model compute in float32 for a moment; yield whether it else rounds to fewer digits.

    Weights in lower precision are converted, those of a block while it runs, so that this needs little memory, and
    restored bit by bit. Shards and quantised weights stay as they are.
    """
    parameters = list(model.parameters())
    low = any(p.dtype in LOW for p in parameters)
    whole = all(p.is_floating_point() and not hasattr(p, "full_tensor") for p in parameters)
    with full_precision(model) as mixed, _converted(model) if low and whole else nullcontext():
        yield mixed or (low and whole)


@contextmanager
def _converted(model: Any) -> Iterator[None]:
    blocks = find_blocks(model)
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    apart = {*embeddings, *(module for block in blocks for module in block.modules())}
    others = [module for module in model.modules() if module not in apart]
    with ExitStack() as stack:
        _convert([tensor for module in others for tensor in _list_tensors(module, recurse=False)], stack)
        for block in blocks:
            own = ExitStack()
            stack.callback(own.close)  # if the block fails
            stack.callback(block.register_forward_pre_hook(_start(block, own)).remove)
            stack.callback(block.register_forward_hook(lambda *_, own=own: own.close()).remove)
        for embedding in embeddings:  # looking up is exact, and these are the largest weights
            stack.callback(embedding.register_forward_hook(lambda _, __, out: out.float()).remove)
        yield


def _list_tensors(module: nn.Module, *, recurse: bool = True) -> list[Tensor]:
    return [*module.parameters(recurse), *module.buffers(recurse)]


def _start(block: nn.Module, own: ExitStack) -> Callable[..., None]:
    return lambda *_: _convert(_list_tensors(block), own)


def _convert(tensors: list[Tensor], stack: ExitStack) -> None:
    """Convert tensors to float32 until the stack is closed."""
    for tensor in tensors:
        if tensor.dtype in LOW:
            stack.callback(setattr, tensor, "data", tensor.data)
            tensor.data = tensor.data.float()


def is_close(values: Tensor, truth: Tensor, *, mixed: bool = False, proven: bool = False) -> bool:
    """Return whether tensors differ by no more than rounding, relative to the largest value.

    In bfloat16, their differences must be small on average too; more is allowed if they are `proven` equal in float32.
    `mixed` is whether they are sums of numbers in bfloat16, whatever their own precision.
    """
    largest, mean = FINE, FINE
    if proven:
        largest, mean = PROVEN, PROVEN_MEAN
    elif mixed or {values.dtype, truth.dtype} & LOW:
        largest, mean = COARSE, COARSE_MEAN
    values, truth = values.float(), truth.float()
    if not torch.isfinite(values).all():
        return False
    differences = values - truth
    small = differences.square().mean() <= mean**2 * truth.square().mean()
    return bool((small or largest == FINE) and differences.abs().max() <= largest * truth.abs().max())


def depends_on_later_tokens(alone_PC: Tensor, followed_PC: Tensor) -> bool:
    """Return whether the hidden states of a prefix, or its logits, change with the tokens that follow it.

    Most of its tokens must change: rounding may send single tokens to other experts.
    """
    change_P = (alone_PC.float() - followed_PC.float()).abs().amax(1) / alone_PC.float().abs().max()
    return float(change_P.median()) > (LEAK if followed_PC.dtype == torch.float32 else COARSE)
