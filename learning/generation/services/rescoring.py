"""Log-probabilities of given completions under a model, all in one forward pass.

Shapes: M packed tokens.
"""

from collections.abc import Sequence

import torch

from learning.models.packed import pack, packed_logprobs


@torch.no_grad()
def compute_likelihoods(
    model: torch.nn.Module, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0
) -> list[list[float]]:
    """Return the log-probabilities, in nats, of the second of each pair of token ids after the first."""
    if not pairs:
        return []
    segments = [ids for pair in pairs for ids in pair]
    parents = [p for i in range(len(pairs)) for p in (-1, 2 * i)]
    packed = pack(segments, parents).to(next(model.parameters()).device)
    lp_M, _ = packed_logprobs(model, packed, temperature=temperature)
    starts, values = packed.cu_seqlens_S1.tolist(), lp_M.double().tolist()
    return [values[starts[2 * i + 1] : starts[2 * i + 2]] for i in range(len(pairs))]
