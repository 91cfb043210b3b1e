"""Attention of the torch engine over slots, and a check per model that its decoding gives the model's own numbers.

Prompts, or one new token per slot; sliding windows, caps and sinks.

Shapes: B rows, H key-value heads, G queries per head, D width of a head, T tokens at once, L columns, R prompts,
V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from learning.generation.engines.kept_turns import Extension, KeptTurn, extend
from learning.generation.engines.slots import Prefix, Slots, compute_slot_logits, has_states, prefill
from learning.models.cpu_attention import Path
from learning.models.forwards import evaluation_mode
from learning.models.limited_attention import Limits, attend_limited
from learning.models.packed import NARROW, UNFIT
from learning.models.reduced import (
    KNOWN_LAYERS,
    describe_unsupported_attention,
    in_float32,
    is_close,
    narrow_windows,
    reduced,
)

NAME = "posttrain_slots"


def attend_over_slots(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    slots: Slots | Extension | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, T, heads, D) of prompts (`slots` None), of new tokens after kept turns, or of one per slot.

    `sliding_window` is the number of keys that a token sees, `softcap` the largest score, and `s_aux` the scores
    (heads,) of sinks, by the names of transformers' AttentionInterface.
    """
    if query.dtype != value.dtype:  # bf16 leaves rotated queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    if slots is None:
        return _attend_prompts(query, key, value, s_aux, scaling, Limits(sliding_window or None, softcap)), None
    if isinstance(slots, Extension):
        return _attend_extension(
            query, key, value, s_aux, slots, scaling, Limits(sliding_window or None, softcap)
        ), None
    rows, heads = query.shape[:2]
    query_BHGD = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
    if slots.groups:
        given = (query_BHGD, key, value, s_aux, slots, scaling, Limits(sliding_window or None, softcap))
        return _attend_after_prompts(*given).reshape(rows, 1, heads, -1), None
    limited = softcap is not None or s_aux is not None
    if not limited and query_BHGD.shape[2] == 1 and _is_fit(query_BHGD) and slots.holds(key, value):
        return _attend_single(query_BHGD, slots, sliding_window, scaling).reshape(rows, 1, heads, -1), None
    bias_B11L = slots.compute_bias(sliding_window)
    if not limited:
        # Queries that share a key-value head take the place of the token dimension, so that keys are never repeated.
        bias = bias_B11L.to(query.dtype)
        out_BHGD = scaled_dot_product_attention(query_BHGD, key, value, attn_mask=bias, scale=scaling)
    else:
        out_BHGD = _attend_tokens(query_BHGD, key, value, s_aux, bias_B11L, scaling, softcap)
    return out_BHGD.reshape(rows, 1, heads, -1), None


NARROWEST = 8
"""Smallest width of a head for which all products of matrices over STEP columns and more are computed by one kernel."""


def _is_fit(query: Tensor) -> bool:
    """Return whether `_attend_single` is faster than torch's attention, and does not depend on the other rows."""
    return query.device.type == "cpu" and query.dtype == torch.float32 and query.shape[-1] >= NARROWEST


def _attend_single(query_BH1D: Tensor, slots: Slots, window: int | None, scaling: float) -> Tensor:
    """Return attention (B, H, 1, D) of a query per head.

    Columns are padded to a multiple of STEP, so that sums have the same order however long the other rows are.
    """
    keys_XLD, values_XLD = (slab_BHLD.flatten(0, 1) for slab_BHLD in slots.list_padded())
    scores_X1L = torch.bmm((query_BH1D * scaling).flatten(0, 1), keys_XLD.transpose(1, 2))
    scores_BH1L = scores_X1L.view(*query_BH1D.shape[:3], -1).add_(slots.compute_bias(window, padded=True))
    return torch.bmm(scores_BH1L.softmax(-1).flatten(0, 1), values_XLD).view(*query_BH1D.shape[:3], -1)


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


def _attend_extension(
    query: Tensor,
    key_BHLD: Tensor,
    value_BHLD: Tensor,
    sinks: Tensor | None,
    extension: Extension,
    scaling: float,
    limits: Limits,
) -> Tensor:
    """Return attention (B, T, heads, D) of new tokens to kept keys and to those of the new tokens before them."""
    rows, heads, new = query.shape[:3]
    groups = heads // key_BHLD.shape[1]
    query_BHXD = query.reshape(rows, key_BHLD.shape[1], groups * new, -1)  # X: queries of a group, token by token
    bias_B1XL = extension.compute_bias(limits.window)
    if groups > 1:
        bias_B1XL = bias_B1XL.repeat(1, 1, groups, 1)
    if limits.cap is None and sinks is None:
        bias = bias_B1XL.to(query.dtype)
        out_BHXD = scaled_dot_product_attention(query_BHXD, key_BHLD, value_BHLD, attn_mask=bias, scale=scaling)
    else:
        of_tokens = None if sinks is None else sinks.repeat_interleave(new)
        out_BHXD = _attend_tokens(query_BHXD, key_BHLD, value_BHLD, of_tokens, bias_B1XL, scaling, limits.cap)
    return out_BHXD.reshape(rows, heads, new, -1).transpose(1, 2)


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


LOWEST = -1e30
"""Largest score of a part without a key that is seen: finite, so that exp(−inf − LOWEST) is 0."""


def _attend_after_prompts(
    query_BHGD: Tensor,
    key_BHLD: Tensor,
    value_BHLD: Tensor,
    sinks: Tensor | None,
    slots: Slots,
    scaling: float,
    limits: Limits,
) -> Tensor:
    """Return attention (B, H, G, D) to shared prompts, read once for all slots that continue them, and to slots.

    Both parts have their largest score m, z = Σ exp(s − m) and o = Σ exp(s − m)·v, and are merged exactly.
    """
    query_BHGD = query_BHGD * scaling
    own = _attend_part(query_BHGD, key_BHLD, value_BHLD, slots.compute_bias(limits.window), limits.cap)
    heads, queries, width = query_BHGD.shape[1:]
    far: list[list[Tensor]] = [[], [], []]
    for group in slots.groups:
        keys, values = group.pairs[slots.layer]
        prompts, each = len(keys), len(group.slot_X) // len(keys)
        query_RNHGD = query_BHGD.index_select(0, group.slot_X).view(prompts, each, heads, queries, width)
        query_RHXD = query_RNHGD.transpose(1, 2).reshape(prompts, heads, each * queries, width)
        column_T = torch.arange(keys.shape[2], device=keys.device)
        unseen_RNT = (column_T >= group.length_R[:, None])[:, None]
        if limits.window:
            position_RN1 = slots.position_B[group.slot_X].view(prompts, each, 1)
            unseen_RNT = unseen_RNT | (column_T <= position_RN1 - limits.window)
        bias_RNT = query_RHXD.new_zeros(()).masked_fill(unseen_RNT, float("-inf"))
        bias_R1XT = bias_RNT.repeat_interleave(queries, 1)[:, None] if bias_RNT.shape[1] > 1 else bias_RNT[:, None]
        for pieces, part_RHXE in zip(far, _attend_part(query_RHXD, keys, values, bias_R1XT, limits.cap), strict=True):
            part_RHNGE = part_RHXE.unflatten(2, (each, queries))
            pieces.append(part_RHNGE.permute(0, 2, 1, 3, 4).flatten(0, 1))
    fills = (LOWEST, 0.0, 0.0)  # of rows that continue no prompt
    parts = (
        torch.cat([*pieces, pieces[0].new_full((1, *pieces[0].shape[1:]), fill)]).index_select(0, slots.origin_B)
        for pieces, fill in zip(far, fills, strict=True)
    )
    (own_top, own_sum, own_out), (far_top, far_sum, far_out) = own, parts
    top = torch.maximum(own_top, far_top)
    sinks_1HG1 = None if sinks is None else sinks.to(top.dtype).view(1, heads, queries, 1)
    if sinks_1HG1 is not None:
        top = torch.maximum(top, sinks_1HG1)
    own_scale, far_scale = (own_top - top).exp(), (far_top - top).exp()
    total = own_sum * own_scale + far_sum * far_scale
    if sinks_1HG1 is not None:
        total = total + (sinks_1HG1 - top).exp()
    return ((own_out * own_scale + far_out * far_scale) / total).to(value_BHLD.dtype)


def _attend_part(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest score (…, 1), the sum of exponentials (…, 1) and the weighted sum of values (…, E)."""
    scores = query @ key.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if cap is not None:
        scores = (scores / cap).tanh_().mul_(cap)
    scores = scores + bias
    top = scores.amax(-1, keepdim=True).clamp(min=LOWEST)
    weights = (scores - top).exp_()
    return top, weights.sum(-1, keepdim=True), (weights.to(value.dtype) @ value).to(scores.dtype)


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


PROMPTS = (12, 7)
"""Tokens of the two prompts that are tried together, right-padded if the model keeps no states."""
STEPS = 4
"""Tokens that follow each of them."""
SLOT_LAYERS = KNOWN_LAYERS | {"linear_attention", "conv", "hybrid", "hybrid_sliding", "moe", "mlp"}
"""Layers whose caches can be rows of slots, as transformers names them in `layer_types`."""

_REASONS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_SHARES: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_EXTENDS: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def explain_slot_misfit(model: Any) -> str:
    """Return why a model cannot be decoded over slots, or an empty string if it can."""
    if model not in _REASONS:
        reason = describe_unsupported_attention(model.config, SLOT_LAYERS)
        if not reason:
            reason = _compare_decoding(model)
        _REASONS[model] = reason and f"{model.config.model_type}: {reason}"
    return _REASONS[model]


def shares_prompts(model: Any) -> bool:
    """Return whether decoding is right, too, if the slots of a prompt share its keys and values."""
    if model not in _SHARES:
        _SHARES[model] = not _compare_decoding(model, "shared")
    return _SHARES[model]


def extends_turns(model: Any) -> bool:
    """Return whether new tokens may be computed against the keys and values of an earlier turn.

    States of linear attention and of convolutions are not kept.
    """
    if model not in _EXTENDS:
        _EXTENDS[model] = not has_states(model) and not _compare_decoding(model, "extended")
    return _EXTENDS[model]


def describe_decoding(model: Any) -> dict[str, str]:
    """Return the note `decoding` for a step's metrics: the method that sampled; empty if none did."""
    reason = _REASONS.get(model)
    if reason is None:
        return {}
    if reason:
        return {"decoding": f"transformers' own cache ({reason})"}
    shared = {None: "slots", True: "slots, shared prompts", False: "slots, as shared prompts give other numbers"}
    return {"decoding": f"{shared[_SHARES.get(model)]} (agrees with its own forward on its weights)"}


Way = Literal["slots", "shared", "extended"]
"""How prompts get into slots: copied, shared, or computed in two parts, the second against the first."""


def _compare_decoding(model: Any, way: Way = "slots") -> str:
    """Return how slots differ from the model's own forward; what computes in bfloat16 is compared in float32 first."""
    with narrow_windows(model, NARROW), reduced(model):
        with in_float32(model) as rounds:
            reason = _find_difference(model, way)
        return _find_difference(model, way, proven=True) if rounds and not reason else reason


@torch.inference_mode()
def _find_difference(model: Any, way: Way, *, proven: bool = False) -> str:
    """Return how the logits over slots differ from those of the model's own forward after a few tokens, or ""."""
    device, size = model.device, model.get_input_embeddings().weight.shape[0]
    rows = [[(5 + 29 * i + 13 * row) % size for i in range(n + STEPS)] for row, n in enumerate(PROMPTS)]
    lengths: list[int] = [*PROMPTS]
    if way == "shared":  # another continuation of the first prompt
        rows.append(rows[0][: PROMPTS[0]] + rows[1][:STEPS])
        lengths.append(PROMPTS[0])
    try:
        with use_slot_attention(model):
            slots = _place_prompts(model, rows, lengths, way)
            length_B, logits = torch.tensor(lengths, device=device), []
            for step in range(STEPS):
                token_B = torch.tensor([row[n + step] for row, n in zip(rows, lengths, strict=True)], device=device)
                logits.append(compute_slot_logits(model, slots, token_B, length_B + step))
    except UNFIT as error:
        return f"its cache does not fit slots ({type(error).__name__})"
    for row, (ids, length) in enumerate(zip(rows, lengths, strict=True)):
        with evaluation_mode(model):
            truth_LV = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, length:]
        if not is_close(torch.stack(logits)[:, row], truth_LV, proven=proven):
            return "decoding over slots gives other numbers than its own forward"
    return ""


def _place_prompts(model: Any, rows: list[list[int]], lengths: list[int], way: Way) -> Slots:
    """Return slots with the prompts of all rows; a third row continues the prompt of the first."""
    slots = Slots(model, len(rows), max(PROMPTS) + STEPS, shares=way == "shared")
    batches = [[0], [1]] if slots.keeps_states else [[0, 1]]
    for batch in batches:
        width = max(PROMPTS[row] for row in batch)
        ids = [rows[row][: PROMPTS[row]] + [0] * (width - PROMPTS[row]) for row in batch]
        prefix = prefill(model, torch.tensor(ids, device=model.device))
        if way == "extended":
            prefix = _compute_in_parts(model, prefix, [rows[row][: PROMPTS[row]] for row in batch])
        continued = [(row, batch.index(row % len(PROMPTS))) for row in range(len(rows)) if row % len(PROMPTS) in batch]
        at, source = (torch.tensor(column, device=model.device) for column in zip(*continued, strict=True))
        slots.place(at, prefix, source, torch.tensor(lengths, device=model.device)[at])
    return slots


def _compute_in_parts(model: Any, prefix: Prefix, prompts: list[list[int]]) -> Prefix:
    """Return the keys and values of prompts, of which those of all but a few tokens are taken from a prefix."""
    kept = []
    for row, ids in enumerate(prompts):
        first = min(map(len, prompts)) - 2 - row
        pairs = {
            layer: (keys[row, :, :first], values[row, :, :first]) for layer, (keys, values) in prefix.pairs.items()
        }
        kept.append(KeptTurn(ids[:first], pairs))
    return extend(model, kept, [ids[len(turn.ids) :] for ids, turn in zip(prompts, kept, strict=True)])
