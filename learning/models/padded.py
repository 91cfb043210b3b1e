"""The model's own forward pass over right-padded rows: exact for every causal architecture, without prefix sharing.

Every path from a root to a leaf of the forest becomes a separate row, so a shared prefix is computed once per path.

Shapes: M packed tokens, B paths, L longest path, C width of the model, V vocabulary.
"""

from itertools import pairwise
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from learning.models.reduced import depends_on_later_tokens, is_close
from schemas.errors import StepError

if TYPE_CHECKING:
    from learning.models.packed import Packed


def padded_hidden(model: Any, packed: "Packed") -> Tensor:
    """Return the last hidden state of every packed token (M, C), from the model's own forward over its path."""
    ids_BL, real_BL, place_M = lay_out_rows(packed)
    out = get_body(model)(input_ids=ids_BL, attention_mask=real_BL, use_cache=False)
    return out[0].flatten(0, 1).index_select(0, place_M)


def padded_outputs(model: Any, packed: "Packed") -> tuple[Tensor, Tensor | None]:
    """Return last hidden states (M, C) and logits (M, V) of every packed token from one pass; no logits without a head.

    A model without output embeddings has no head.
    """
    if model.get_output_embeddings() is None:
        return padded_hidden(model, packed), None
    kept: list[Tensor] = []
    hook = get_body(model).register_forward_hook(lambda _, __, out: kept.append(out[0]))
    try:
        logits_MV = padded_logits(model, packed)
    finally:
        hook.remove()
    if not kept:  # OPT calls a part of the body
        return padded_hidden(model, packed), logits_MV
    return kept[0].flatten(0, 1).index_select(0, lay_out_rows(packed)[2]), logits_MV


def padded_logits(model: Any, packed: "Packed") -> Tensor:
    """Return the logits (M, V) after every packed token, from the model's own forward over its path."""
    ids_BL, real_BL, place_M = lay_out_rows(packed)
    out = model(input_ids=ids_BL, attention_mask=real_BL, use_cache=False)
    return out.logits.flatten(0, 1).index_select(0, place_M)


def get_body(model: Any) -> Any:
    """Return the module that computes hidden states; in a few architectures it is not `base_model`."""
    body = model.base_model
    return model.model if body is model and hasattr(model, "model") else body


def lay_out_rows(packed: "Packed") -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (B, L) and mask (B, L) of all paths, and each packed token's index among their B·L positions (M,)."""
    parents, borders = packed.parent_S.tolist(), packed.cu_seqlens_S1.tolist()
    spans = list(pairwise(borders))
    leaves = sorted(set(range(len(parents))) - set(parents))
    paths = []
    for leaf in leaves:
        chain, segment = [], leaf
        while segment >= 0:
            chain.insert(0, torch.arange(*spans[segment]))
            segment = parents[segment]
        paths.append(torch.cat(chain))
    longest = max(len(path) for path in paths)
    at_BL = torch.stack([torch.cat([path, path.new_full((longest - len(path),), -1)]) for path in paths])
    real_BL = at_BL >= 0
    place_M = torch.zeros(borders[-1], dtype=torch.long)
    for row, path in reversed(list(enumerate(paths))):  # a token's values come from the first path that holds it
        place_M[path] = row * longest + torch.arange(len(path))
    device = packed.input_ids_M.device
    ids_BL = packed.input_ids_M[at_BL.clamp(min=0).to(device)].masked_fill(~real_BL.to(device), 0)
    return ids_BL, real_BL.long().to(device), place_M.to(device)


def compute_logits(model: Any, rows_BC: Tensor) -> Tensor:
    """Return logits (B, V) of last hidden states, with the caps and scales of the model's config."""
    logits_BV = model.get_output_embeddings()(rows_BC)
    config = model.config.get_text_config()
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits_BV = logits_BV * scale
    if scaling := getattr(config, "logits_scaling", None):  # Granite
        logits_BV = logits_BV / scaling
    if cap := getattr(config, "final_logit_softcapping", getattr(config, "logits_soft_cap", None)):  # Gemma
        logits_BV = (logits_BV / cap).tanh() * cap
    return logits_BV


def examine_own_forward(model: Any, probe: "Packed", prefix: "Packed") -> tuple[Tensor, bool]:
    """Return hidden states (M, C) of a probe, and whether the logits are the output embeddings of them.

    `prefix` is the first segment by itself. Raise StepError if its states or logits change with later tokens, or if
    the model cannot compute in the precision of its weights.
    """
    try:
        truth_MC, logits_MV = padded_outputs(model, probe)
        alone_PC, alone_PV = padded_outputs(model, prefix.to(model.device))
    except RuntimeError as error:
        if model.dtype == torch.float32 or isinstance(error, torch.OutOfMemoryError):
            raise
        kind, dtype, reason = model.config.model_type, str(model.dtype).removeprefix("torch."), str(error).splitlines()
        raise StepError(
            f"{kind}: its forward pass in transformers fails with weights in {dtype} ({reason[0]}); use dtype: float32"
        ) from error
    pairs = [(alone_PC, truth_MC)]
    plain = logits_MV is None or _is_plain_head(model, truth_MC, logits_MV)
    if not plain and alone_PV is not None and logits_MV is not None:  # such as ProphetNet's, from streams of its own
        pairs.append((alone_PV, logits_MV))
    if any(depends_on_later_tokens(alone, followed[: len(alone)]) for alone, followed in pairs):
        kind = model.config.model_type
        raise StepError(f"{kind}: its tokens attend to later tokens, so it is no causal language model; use another")
    return truth_MC, plain


def _is_plain_head(model: Any, truth_MC: Tensor, logits_MV: Tensor) -> bool:
    """Return whether the logits are the output embeddings of the hidden states; other heads may take other widths."""
    try:
        return is_close(compute_logits(model, truth_MC), logits_MV)
    except RuntimeError:
        return False


def correct_attention(model: Any) -> None:
    """Let a model's attention apply its score caps, and choose the earliest of tokens with equal scores.

    transformers' SDPA ignores caps, so that its eager attention is used. Indexers (DeepSeek V3.2, GLM 5) choose the
    tokens to attend to by `topk`, for which it is chance which of equal scores it takes: after a token whose embedding
    is zero (padding) all are equal, and each further token would change the choice.
    """
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")
    for module in model.modules():
        if type(module).__name__.endswith("Indexer"):
            module.forward = MethodType(_choose_earliest, module)


def _choose_earliest(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with _StableTopK():
        return type(self).forward(self, *args, **kwargs)


class _StableTopK(TorchFunctionMode):
    """Makes `topk` take the first of equal scores."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.topk, Tensor.topk):
            return func(*args, **(kwargs or {}))
        return _take_first_of_equal(*args, **(kwargs or {}))


def _take_first_of_equal(scores: Tensor, k: int, dim: int = -1) -> Any:
    sorted_scores, indices = scores.sort(dim=dim, descending=True, stable=True)
    return torch.return_types.topk((sorted_scores.narrow(dim, 0, k), indices.narrow(dim, 0, k)))
