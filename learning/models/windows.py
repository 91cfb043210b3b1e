"""Sliding windows of a model: narrowed while its forward passes are compared on a few tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAME = "sliding_window"
"""How transformers names a window in configs and modules; its masks and attention calls read it there."""
KNOWN_LAYERS = frozenset({"full_attention", "attention", "sliding_attention"})
"""Layers of attention that is limited by causality and windows alone, as transformers names them in `layer_types`."""


@contextmanager
def narrow_windows(model: Any, size: int) -> Iterator[None]:
    """Limit every window of a model to `size` keys, and restore it afterwards.

    A comparison on a few tokens could not tell apart windows that are wider than these tokens.
    """
    config = model.config.get_text_config()
    holders = [holder for holder in (config, *model.modules()) if _is_window(getattr(holder, NAME, None))]
    before = [getattr(holder, NAME) for holder in holders]
    for holder, window in zip(holders, before, strict=True):
        setattr(holder, NAME, min(size, window))
    try:
        yield
    finally:
        for holder, window in zip(holders, before, strict=True):
            setattr(holder, NAME, window)


def describe_unsupported_attention(config: Any, known: frozenset[str] = KNOWN_LAYERS) -> str:
    """Return what of a config's layers only the model's own forward computes; empty if all are `known`."""
    config = config.get_text_config()
    if kinds := set(getattr(config, "layer_types", None) or ()) - known:
        return f"layers of {', '.join(sorted(map(str, kinds)))}"
    if getattr(config, "attention_chunk_size", None):
        return "attention in chunks"
    for name, value in sorted(config.to_dict().items()):
        other = "window" in name and name != NAME and not name.endswith(("pattern", "layers"))
        if other and _is_window(value):
            return f"attention within `{name}`"
    return ""


def _is_window(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
