"""Causal attention within each of several concatenated rows, on a CPU, without gathering or padding.

The probabilities of the forward pass are kept for the backward pass, which costs memory quadratic in a row's length, so
rows have at most LONGEST tokens. Queries are processed in spans of about SPAN tokens with no key after their last one,
which skips most masked scores. Torch's kernel for CPUs takes a third to a half longer at such lengths.

Shapes: M packed tokens, H heads, D head size, Q queries of a span, K keys that it sees.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SHORTEST, LONGEST = 48, 512
"""Lengths of rows, in tokens, for which this is faster; shorter rows are faster in padded blocks."""
SPAN = 64
"""Queries of a row that are processed together."""

Rows = tuple[tuple[int, int], ...]
"""First token of each row, and the one after its last."""


def attend_rows(q_HMD: Tensor, k_HMD: Tensor, v_HMD: Tensor, rows: Rows, scaling: float) -> Tensor:
    """Return attention of the tokens of `rows`, one row after the other: (Σ lengths, H·D), in float32 or float64."""
    out_HXD = _Rows.apply(q_HMD, k_HMD, v_HMD, rows, scaling)
    return out_HXD.transpose(0, 1).flatten(1)


class _Rows(torch.autograd.Function):
    """P = softmax(scaling·QKᵀ) under the causal mask, O = PV; the backward pass reads P."""

    @staticmethod
    def forward(ctx: Any, q_HMD: Tensor, k_HMD: Tensor, v_HMD: Tensor, rows: Rows, scaling: float) -> Tensor:
        heads, size = q_HMD.shape[0], sum(end - start for start, end in rows)
        q_HMD = q_HMD * scaling
        out_HXD = v_HMD.new_empty(size, heads, v_HMD.shape[2]).transpose(0, 1)
        shares = []
        for start, begin, end, place in _spans(rows):
            share_HQK = torch.bmm(q_HMD[:, begin:end], k_HMD[:, start:end].transpose(1, 2))
            share_HQK[:, :, begin - start :].masked_fill_(_later(end - begin), -torch.inf)
            torch.softmax(share_HQK, -1, out=share_HQK)
            torch.bmm(share_HQK, v_HMD[:, start:end], out=out_HXD[:, place : place + end - begin])
            if any(ctx.needs_input_grad):
                shares.append(share_HQK)
        ctx.save_for_backward(q_HMD, k_HMD, v_HMD, *shares)
        ctx.rows, ctx.scaling = rows, scaling
        return out_HXD

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per output
        ctx: Any, grad_HXD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_HMD, k_HMD, v_HMD, *shares = ctx.saved_tensors
        dq_HMD, dk_HMD, dv_HMD = (torch.zeros_like(x) for x in (q_HMD, k_HMD, v_HMD))
        for (start, begin, end, place), share_HQK in zip(_spans(ctx.rows), shares, strict=True):
            grad_HQD = grad_HXD[:, place : place + end - begin]
            dv_HMD[:, start:end].baddbmm_(share_HQK.transpose(1, 2), grad_HQD)
            score_HQK = torch.bmm(grad_HQD, v_HMD[:, start:end].transpose(1, 2))
            score_HQK = torch.ops.aten._softmax_backward_data(score_HQK, share_HQK, -1, share_HQK.dtype)
            torch.bmm(score_HQK, k_HMD[:, start:end], out=dq_HMD[:, begin:end])
            dk_HMD[:, start:end].baddbmm_(score_HQK.transpose(1, 2), q_HMD[:, begin:end])
        return dq_HMD.mul_(ctx.scaling), dk_HMD, dv_HMD, None, None


def _spans(rows: Rows) -> Iterator[tuple[int, int, int, int]]:
    """Yield first token of the row, first of the span, the one after its last, and its place in the output."""
    place = 0
    for start, end in rows:
        count = max(1, round((end - start) / SPAN))
        borders = [start + (end - start) * i // count for i in range(count + 1)]
        for begin, finish in pairwise(borders):
            yield start, begin, finish, place + begin - start
        place += end - start


@lru_cache(maxsize=2 * SPAN)
def _later(size: int) -> Tensor:
    """Return which keys of a span come after each of its queries (size, size)."""
    return torch.ones(size, size, dtype=torch.bool).triu_(1)
