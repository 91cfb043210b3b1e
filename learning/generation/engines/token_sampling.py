"""Sample tokens from logits: temperature, processor, kept tokens, draw; log-probabilities are of what is drawn from.

Shapes: B sequences, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from learning.samples.engine_protocol import Processor
from learning.samples.kept_tokens import encode_kept
from schemas.kept_tokens import KeptTokens

FIXED_POINT = 2.0**52
"""Probability 1 as an integer."""
LOGITS_AT_ONCE = 1 << 22
"""Largest number of logits whose distributions are in memory at once: a draw takes 24 bytes for each."""


def draw(logp_BV: Tensor, uniform_B1: Tensor) -> Tensor:
    """Return tokens (B,) by inverting the distribution at numbers in [0, 1); never one of probability 0.

    The sums are of integers, so they do not depend on the order in which a device adds.
    """
    cdf_BV = (logp_BV.double().exp() * FIXED_POINT).long().cumsum(-1)
    total_B1 = cdf_BV[:, -1:]
    target_B1 = torch.minimum((uniform_B1 * total_B1).long(), total_B1 - 1)
    # Weights of NaN give no distribution: any token will do, its log-probability shows the failure.
    return torch.searchsorted(cdf_BV, target_B1, right=True)[:, 0].clamp(max=logp_BV.shape[1] - 1)


def compute_entropy(logp_BV: Tensor) -> Tensor:
    """Return the entropy in nats (B,) of distributions by log-probabilities; impossible tokens add 0."""
    return -(logp_BV.exp() * logp_BV.clamp(min=torch.finfo(logp_BV.dtype).min)).sum(-1)


def find_kept(logits_BV: Tensor, kept_tokens: KeptTokens) -> Tensor:
    """Return which tokens are kept (B, V); of tokens with equal logits those of lower ids come first."""
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    most = kept_tokens.top_k or logits_BV.shape[1]
    keep_BV = (torch.arange(logits_BV.shape[1], device=logits_BV.device) < most).expand_as(logits_BV)
    if kept_tokens.top_p is not None:
        probability_BV = sorted_BV.masked_fill(~keep_BV, -torch.inf).double().softmax(-1)
        before_BV = probability_BV.cumsum(-1) - probability_BV
        keep_BV = (keep_BV & (before_BV < kept_tokens.top_p)).index_fill(1, order_BV.new_zeros(1), True)
    return torch.zeros_like(keep_BV).scatter(1, order_BV, keep_BV)


@dataclass(frozen=True)
class SampledTokens:
    """Next tokens with their log-probabilities and entropies, (B,) each, and the records of the kept tokens."""

    token_B: Tensor
    logprob_B: Tensor
    entropy_B: Tensor | None
    kept: list[str] | None = None


def pick(
    logits_BV: Tensor,
    temperature_B: Tensor,
    uniform_B1: Tensor | None,
    *,
    greedy: bool,
    place_B: Tensor,
    processor: Processor | None = None,
    contexts_B: list[list[int]] | None = None,
    entropy: bool = False,
    kept_tokens: KeptTokens | None = None,
) -> SampledTokens:
    """Return the next tokens: drawn at `uniform_B1`, or the likeliest where the temperature is 0.

    `uniform_B1` is None if no temperature is above 0; `greedy` is set if some may be 0. The reported distribution of a
    greedy token is that of temperature 1. Rows of a large vocabulary are sampled a few at a time. `contexts_B` are the
    tokens before, for a processor that reads them.
    """
    step = max(1, LOGITS_AT_ONCE // logits_BV.shape[1])
    pieces = [
        _pick_rows(
            logits_BV[rows],
            temperature_B[rows],
            None if uniform_B1 is None else uniform_B1[rows],
            place_B[rows],
            greedy=greedy,
            processor=processor,
            contexts_B=None if contexts_B is None else contexts_B[rows],
            entropy=entropy,
            kept_tokens=kept_tokens,
        )
        for rows in (slice(start, start + step) for start in range(0, max(1, len(logits_BV)), step))
    ]
    return pieces[0] if len(pieces) == 1 else _concatenate(pieces)


def _concatenate(pieces: list[SampledTokens]) -> SampledTokens:
    entropies = [piece.entropy_B for piece in pieces if piece.entropy_B is not None]
    return SampledTokens(
        torch.cat([piece.token_B for piece in pieces]),
        torch.cat([piece.logprob_B for piece in pieces]),
        torch.cat(entropies) if entropies else None,
        None if pieces[0].kept is None else [record for piece in pieces for record in piece.kept or ()],
    )


def _pick_rows(
    logits_BV: Tensor,
    temperature_B: Tensor,
    uniform_B1: Tensor | None,
    place_B: Tensor,
    *,
    greedy: bool,
    processor: Processor | None,
    contexts_B: list[list[int]] | None,
    entropy: bool,
    kept_tokens: KeptTokens | None,
) -> SampledTokens:
    # Divide by a tensor: a GPU rounds a division by a number differently.
    scale_B1 = temperature_B.where(temperature_B > 0, 1.0)[:, None] if greedy else temperature_B[:, None]
    logits_BV = logits_BV.float() / scale_B1
    if processor is not None:
        logits_BV = processor(logits_BV, place_B, *([] if contexts_B is None else [contexts_B]))
    kept = None
    if kept_tokens is not None:
        kept_BV = find_kept(logits_BV, kept_tokens)
        logits_BV, kept = logits_BV.masked_fill(~kept_BV, -torch.inf), encode_kept(kept_BV.cpu().numpy())
    logp_BV = logits_BV.log_softmax(-1)
    if uniform_B1 is None:
        token_B = logits_BV.argmax(-1)
    else:
        token_B = draw(logp_BV, uniform_B1)
        token_B = torch.where(temperature_B > 0, token_B, logits_BV.argmax(-1)) if greedy else token_B
    entropy_B = compute_entropy(logp_BV) if entropy else None
    return SampledTokens(token_B, logp_BV.gather(1, token_B[:, None])[:, 0], entropy_B, kept)
