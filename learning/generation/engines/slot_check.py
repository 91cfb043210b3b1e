"""Check once per model, on its weights, that attention over slots gives the numbers of the model's own forward.

Shapes: B rows, V vocabulary.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from learning.generation.engines.slots import Slots, compute_slot_logits, prefill, use_slot_attention
from learning.models.forwards import evaluation_mode
from learning.models.packed import UNFIT, is_close
from learning.models.padded import describe_limited_attention
from schemas.errors import StepError

PROMPTS = (12, 7)
"""Tokens of the two prompts that are tried together, right-padded."""
STEPS = 4
"""Tokens that follow each of them."""

_REASONS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def explain_slot_misfit(model: Any) -> str:
    """Return why a model cannot be decoded over slots, or an empty string if it can."""
    if model not in _REASONS:
        reason = describe_limited_attention(model.config) or _find_difference(model)
        _REASONS[model] = reason and f"{model.config.model_type}: {reason}"
    return _REASONS[model]


@torch.inference_mode()
def _find_difference(model: Any) -> str:
    """Return how the logits over slots differ from those of the model's own forward after a few tokens, or ""."""
    device, size = model.device, model.get_input_embeddings().weight.shape[0]
    rows = [[(5 + 29 * i + 13 * row) % size for i in range(n + STEPS)] for row, n in enumerate(PROMPTS)]
    try:
        with use_slot_attention(model):
            padded = [row[:n] + [0] * (max(PROMPTS) - n) for row, n in zip(rows, PROMPTS, strict=True)]
            slots = Slots(len(rows), max(PROMPTS) + STEPS, device)
            both, lengths = torch.arange(len(rows), device=device), torch.tensor(PROMPTS, device=device)
            slots.place(both, prefill(model, torch.tensor(padded, device=device)), both, lengths)
            logits = []
            for step in range(STEPS):
                token_B = torch.tensor([row[n + step] for row, n in zip(rows, PROMPTS, strict=True)], device=device)
                logits.append(compute_slot_logits(model, slots, token_B, lengths + step))
    except StepError as error:
        return str(error)
    except UNFIT as error:
        return f"its cache is not one of keys and values alone ({type(error).__name__})"
    for row, (ids, length) in enumerate(zip(rows, PROMPTS, strict=True)):
        with evaluation_mode(model):
            truth_LV = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, length:]
        if not is_close(torch.stack(logits)[:, row], truth_LV):
            return "attention over slots gives other numbers than its own forward"
    return ""
