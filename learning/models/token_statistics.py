"""Statistics of the distributions after hidden states: log-probability, entropy and others.

Shapes: B rows, C width of the model, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learning.samples.kept_tokens import decode_kept


def score_rows(
    rows_BC: Tensor,
    ids_B: Tensor,
    head: Callable[[Tensor], Tensor],
    temperature: float,
    followed: tuple[str, ...],
    watched: tuple[str, ...],
    kept: Sequence[str] | None = None,
) -> tuple[Tensor, ...]:
    """Return statistics (B,) of the distributions after each row, in at least float32.

    `kept` are records of the tokens that each distribution is over (None: the whole vocabulary).
    """
    logits_BV = head(rows_BC)
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    if temperature != 1:
        logits_BV = logits_BV / temperature
    if kept is not None:
        kept_BV = torch.from_numpy(decode_kept(kept, logits_BV.shape[1])).to(logits_BV.device)
        # A finite number, because 0 · ∞ has no value; its probability is 0 all the same.
        lowest = torch.finfo(logits_BV.dtype).min
        logp_BV = logits_BV.masked_fill(~kept_BV, -torch.inf).log_softmax(-1).clamp(min=lowest)
    elif followed == ("lp",) and logits_BV is not rows_BC:
        return _TokenLogProbability.apply(logits_BV, ids_B, watched)
    else:
        logp_BV = logits_BV.log_softmax(-1)
    sides = ((followed, logp_BV), (watched, logp_BV.detach()))
    return tuple(STATISTICS[name](of_BV, ids_B) for names, of_BV in sides for name in names)


class _TokenLogProbability(torch.autograd.Function):
    """`lp` of the tokens, and `watched` statistics without a gradient; log p replaces the logits in memory.

    The gradient of token t's log-probability is g·(1[v = t] − p_v): one more tensor (B, V), where autograd makes two
    and keeps the logits. Values and gradients are bit-identical to autograd's.
    """

    @staticmethod
    def forward(ctx: Any, logits_BV: Tensor, ids_B: Tensor, watched: tuple[str, ...]) -> tuple[Tensor, ...]:
        # Torch's kernels for CPUs read a row before they write it; those of other devices were not tried in place.
        logp_BV = torch.log_softmax(logits_BV, -1, out=logits_BV if logits_BV.is_cpu else None)
        ctx.save_for_backward(logp_BV, ids_B)
        columns = [STATISTICS[name](logp_BV, ids_B) for name in ("lp", *watched)]
        ctx.mark_non_differentiable(*columns[1:])
        return tuple(columns)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per output
        ctx: Any, grad_B: Tensor, *_: Tensor
    ) -> tuple[Tensor, None, None]:
        logp_BV, ids_B = ctx.saved_tensors
        grad_BV = torch.zeros_like(logp_BV).scatter_(1, ids_B[:, None], grad_B[:, None])
        backward, inputs = torch.ops.aten._log_softmax_backward_data, (grad_BV, logp_BV, -1, logp_BV.dtype)
        grad_BV = backward.out(*inputs, out=grad_BV) if grad_BV.is_cpu else backward(*inputs)
        return grad_BV, None, None


STATISTICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "lp": lambda logp_BV, ids_B: logp_BV.gather(1, ids_B[:, None])[:, 0],
    "entropy": lambda logp_BV, ids_B: -(logp_BV.exp() * logp_BV).sum(-1),
    "lp_mean": lambda logp_BV, ids_B: logp_BV.mean(-1),
    "collision": lambda logp_BV, ids_B: (2 * logp_BV).exp().sum(-1),
    "likeliest": lambda logp_BV, ids_B: (logp_BV.argmax(-1) == ids_B).to(logp_BV.dtype),
}
