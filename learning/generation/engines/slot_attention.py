"""Attention of the torch engine over slots: prompts, or one new token per slot; sliding windows, caps and sinks.

Shapes: B rows, H key-value heads, G queries per head, D width of a head, T tokens at once, L columns, R prompts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from learning.generation.engines.slots import Slots
from learning.models.forwards import evaluation_mode
from learning.models.limited_attention import Limits, attend_limited
from learning.models.long_attention import Path

NAME = "posttrain_slots"


def attend_over_slots(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    slots: Slots | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, T, heads, D) of prompts (`slots` None) or of one new token per slot.

    `sliding_window` is the number of keys that a token sees, `softcap` the largest score, and `s_aux` the scores
    (heads,) of sinks, by the names of transformers' AttentionInterface.
    """
    if query.dtype != value.dtype:  # bf16 leaves rotated queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    if slots is None:
        return _attend_prompts(query, key, value, s_aux, scaling, Limits(sliding_window or None, softcap)), None
    rows, heads = query.shape[:2]
    query_BHGD = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
    bias_B11L = slots.compute_bias(sliding_window)
    if softcap is None and s_aux is None:
        # Queries that share a key-value head take the place of the token dimension, so that keys are never repeated.
        bias = bias_B11L.to(query.dtype)
        out_BHGD = scaled_dot_product_attention(query_BHGD, key, value, attn_mask=bias, scale=scaling)
    else:
        out_BHGD = _attend_tokens(query_BHGD, key, value, s_aux, bias_B11L, scaling, softcap)
    return out_BHGD.reshape(rows, 1, heads, -1), None


def _attend_prompts(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, scaling: float, limits: Limits
) -> Tensor:
    """Return causal attention of prompts (R, T, heads, D)."""
    rows, heads, length = query.shape[:3]
    wide = limits.window is None or limits.window >= length
    if wide and limits.cap is None and sinks is None:
        grouped = heads != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
        return out.transpose(1, 2)
    q_HMD, k_KMD, v_KME = (x.transpose(0, 1).flatten(1, 2) for x in (query, key, value))
    paths = [Path(row * length, (row + 1) * length) for row in range(rows)]
    return attend_limited(q_HMD, k_KMD, v_KME, sinks, paths, scaling, limits).view(rows, length, heads, -1)


def _attend_tokens(
    query_BHGD: Tensor,
    key_BHLD: Tensor,
    value_BHLD: Tensor,
    sinks: Tensor | None,
    bias_B11L: Tensor,
    scaling: float,
    cap: float | None,
) -> Tensor:
    """Return attention (B, H, G, D) with capped scores, and with sinks: one more score of a head, without a value."""
    scores_BHGL = (query_BHGD * scaling) @ key_BHLD.transpose(-1, -2)
    scores_BHGL = scores_BHGL.to(torch.promote_types(scores_BHGL.dtype, torch.float32))
    if cap is not None:
        scores_BHGL = (scores_BHGL / cap).tanh_().mul_(cap)
    scores_BHGL = scores_BHGL + bias_B11L
    columns = scores_BHGL.shape[-1]
    if sinks is not None:
        sinks_BHG1 = sinks.to(scores_BHGL.dtype).view(1, *query_BHGD.shape[1:3], 1).expand(len(query_BHGD), -1, -1, -1)
        scores_BHGL = torch.cat([scores_BHGL, sinks_BHG1], -1)
    return scores_BHGL.softmax(-1)[..., :columns].to(value_BHLD.dtype) @ value_BHLD


AttentionInterface.register(NAME, attend_over_slots)


@contextmanager
def use_slot_attention(model: Any) -> Iterator[None]:
    """Within the context the model is in evaluation mode and uses attention over slots."""
    implementation = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        with evaluation_mode(model):
            yield
    finally:
        model.config._attn_implementation = implementation
