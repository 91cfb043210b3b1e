"""Check once per model, on its weights, that decoding over slots gives the numbers of the model's own forward.

Shapes: B rows, V vocabulary.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from learning.generation.engines.slot_attention import use_slot_attention
from learning.generation.engines.slots import Slots, compute_slot_logits, prefill
from learning.models.forwards import evaluation_mode
from learning.models.packed import NARROW, UNFIT, is_close
from learning.models.reduced import reduced
from learning.models.windows import KNOWN_LAYERS, describe_unsupported_attention, narrow_windows

PROMPTS = (12, 7)
"""Tokens of the two prompts that are tried together, right-padded if the model keeps no states."""
STEPS = 4
"""Tokens that follow each of them."""
SLOT_LAYERS = KNOWN_LAYERS | {"linear_attention", "conv", "hybrid", "hybrid_sliding", "moe", "mlp"}
"""Layers whose caches can be rows of slots, as transformers names them in `layer_types`."""

_REASONS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def explain_slot_misfit(model: Any) -> str:
    """Return why a model cannot be decoded over slots, or an empty string if it can."""
    if model not in _REASONS:
        reason = describe_unsupported_attention(model.config, SLOT_LAYERS)
        if not reason:
            with narrow_windows(model, NARROW), reduced(model):
                reason = _find_difference(model)
        _REASONS[model] = reason and f"{model.config.model_type}: {reason}"
    return _REASONS[model]


@torch.inference_mode()
def _find_difference(model: Any) -> str:
    """Return how the logits over slots differ from those of the model's own forward after a few tokens, or ""."""
    device, size = model.device, model.get_input_embeddings().weight.shape[0]
    rows = [[(5 + 29 * i + 13 * row) % size for i in range(n + STEPS)] for row, n in enumerate(PROMPTS)]
    try:
        with use_slot_attention(model):
            slots = _place_prompts(model, rows)
            lengths, logits = torch.tensor(PROMPTS, device=device), []
            for step in range(STEPS):
                token_B = torch.tensor([row[n + step] for row, n in zip(rows, PROMPTS, strict=True)], device=device)
                logits.append(compute_slot_logits(model, slots, token_B, lengths + step))
    except UNFIT as error:
        return f"its cache does not fit slots ({type(error).__name__})"
    for row, (ids, length) in enumerate(zip(rows, PROMPTS, strict=True)):
        with evaluation_mode(model):
            truth_LV = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, length:]
        if not is_close(torch.stack(logits)[:, row], truth_LV):
            return "decoding over slots gives other numbers than its own forward"
    return ""


def _place_prompts(model: Any, rows: list[list[int]]) -> Slots:
    """Return slots with the prompts of all rows."""
    slots = Slots(model, len(rows), max(PROMPTS) + STEPS)
    batches = [[0], [1]] if slots.keeps_states else [[0, 1]]
    for batch in batches:
        width = max(PROMPTS[row] for row in batch)
        ids = [rows[row][: PROMPTS[row]] + [0] * (width - PROMPTS[row]) for row in batch]
        prefix = prefill(model, torch.tensor(ids, device=model.device))
        at = torch.tensor(batch, device=model.device)
        lengths = torch.tensor([PROMPTS[row] for row in batch], device=model.device)
        slots.place(at, prefix, torch.arange(len(batch), device=model.device), lengths)
    return slots
