"""Causal attention on a CPU without gathering or padding: within short rows, and over long paths of a forest.

Rows of at most LONGEST tokens: the probabilities of the forward pass are kept for the backward pass, which costs memory
quadratic in a row's length. Queries are processed in spans of about SPAN tokens with no key after their last one, which
skips most masked scores. Torch's kernel for CPUs takes a third to a half longer at such lengths.

Long paths use torch's fused kernel, with memory linear in their length. A segment attends to itself causally, and each
of its ancestors is attended to by all descendants that lie end to end, as one long query. Attention is thus a sum of
parts with disjoint keys, merged by their log-sum-exps:

    L = log Σ_i exp(L_i),    O = Σ_i exp(L_i − L)·O_i.

The backward kernel recomputes P = exp(S − L) and dS = P∘(dO·Vᵀ − rowsum(dO∘O)) of a part; with the merged L and O it
yields that part's share of the gradient of the whole (Dao et al. 2022, arXiv 2205.14135, algorithm 4).

Shapes: M packed tokens, X tokens of the long paths, H (query) heads, K key-value heads, R = H / K, D head size (E that
of values), Q queries of a span or part, N the keys of a part.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

SHORTEST, LONGEST = 48, 512
"""Lengths of rows, in tokens, for which this is faster; shorter rows are faster in padded blocks."""
SPAN = 64
"""Queries of a row that are processed together."""

Rows = tuple[tuple[int, int], ...]
"""First token of each row, and the one after its last."""


def attend_rows(q_HMD: Tensor, k_KMD: Tensor, v_KMD: Tensor, rows: Rows, scaling: float) -> Tensor:
    """Return attention of the tokens of `rows`, one row after the other: (Σ lengths, H·D), in float32 or float64."""
    out_HXD = _Rows.apply(q_HMD, k_KMD, v_KMD, rows, scaling)
    return out_HXD.transpose(0, 1).flatten(1)


class _Rows(torch.autograd.Function):
    """P = softmax(scaling·QKᵀ) under the causal mask, O = PV; the backward pass reads P.

    Scaled queries, and keys repeated for the heads that share them, exist for one row at a time.
    """

    @staticmethod
    def forward(ctx: Any, q_HMD: Tensor, k_KMD: Tensor, v_KMD: Tensor, rows: Rows, scaling: float) -> Tensor:
        heads, size = q_HMD.shape[0], sum(end - start for start, end in rows)
        out_HXD = v_KMD.new_empty(size, heads, v_KMD.shape[2]).transpose(0, 1)
        shares, place = [], 0
        for start, end in rows:
            q_HND, k_HND, v_HND = _one_row(q_HMD, k_KMD, v_KMD, start, end, scaling)
            for begin, stop in _spans(end - start):
                share_HQK = torch.bmm(q_HND[:, begin:stop], k_HND[:, :stop].transpose(1, 2))
                share_HQK[:, :, begin:].masked_fill_(_later(stop - begin), -torch.inf)
                torch.softmax(share_HQK, -1, out=share_HQK)
                torch.bmm(share_HQK, v_HND[:, :stop], out=out_HXD[:, place + begin : place + stop])
                if any(ctx.needs_input_grad):
                    shares.append(share_HQK)
            place += end - start
        ctx.save_for_backward(q_HMD, k_KMD, v_KMD, *shares)
        ctx.rows, ctx.scaling = rows, scaling
        return out_HXD

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per output
        ctx: Any, grad_HXD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_HMD, k_KMD, v_KMD, *shares = ctx.saved_tensors
        dq_HMD, dk_KMD, dv_KMD = (torch.zeros_like(x) for x in (q_HMD, k_KMD, v_KMD))
        kept, place = iter(shares), 0
        for start, end in ctx.rows:
            q_HND, k_HND, v_HND = _one_row(q_HMD, k_KMD, v_KMD, start, end, ctx.scaling)
            dk_HND, dv_HND = torch.zeros_like(k_HND), torch.zeros_like(v_HND)
            for begin, stop in _spans(end - start):
                share_HQK, grad_HQD = next(kept), grad_HXD[:, place + begin : place + stop]
                dv_HND[:, :stop].baddbmm_(share_HQK.transpose(1, 2), grad_HQD)
                score_HQK = torch.bmm(grad_HQD, v_HND[:, :stop].transpose(1, 2))
                score_HQK = torch.ops.aten._softmax_backward_data(score_HQK, share_HQK, -1, share_HQK.dtype)
                torch.bmm(score_HQK, k_HND[:, :stop], out=dq_HMD[:, start + begin : start + stop])
                dk_HND[:, :stop].baddbmm_(score_HQK.transpose(1, 2), q_HND[:, begin:stop])
            dk_KMD[:, start:end] = _by_group(dk_HND, len(k_KMD)).sum(1)
            dv_KMD[:, start:end] = _by_group(dv_HND, len(k_KMD)).sum(1)
            place += end - start
        return dq_HMD.mul_(ctx.scaling), dk_KMD, dv_KMD, None, None


def _one_row(
    q_HMD: Tensor, k_KMD: Tensor, v_KMD: Tensor, start: int, end: int, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scaled queries, keys and values of the tokens of a row, for every query head."""
    repeats = len(q_HMD) // len(k_KMD)
    k_KND, v_KND = k_KMD[:, start:end], v_KMD[:, start:end]
    if repeats > 1:
        k_KND, v_KND = k_KND.repeat_interleave(repeats, 0), v_KND.repeat_interleave(repeats, 0)
    return q_HMD[:, start:end] * scaling, k_KND, v_KND


def _spans(size: int) -> Iterator[tuple[int, int]]:
    """Yield the first query of each span of a row, and the one after its last."""
    count = max(1, round(size / SPAN))
    return pairwise(size * i // count for i in range(count + 1))


@lru_cache(maxsize=2 * SPAN)
def _later(size: int) -> Tensor:
    """Return which keys of a span come after each of its queries (size, size)."""
    return torch.ones(size, size, dtype=torch.bool).triu_(1)


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Path:
    """A segment and its ancestors, the root first: the first packed token of each, and the one after its last."""

    start: int
    end: int
    chain: tuple[tuple[int, int], ...] = ()

    @property
    def length(self) -> int:
        """Return the number of tokens of the segment."""
        return self.end - self.start

    @property
    def before(self) -> int:
        """Return the number of tokens of its ancestors."""
        return sum(end - start for start, end in self.chain)


@dataclass(frozen=True)
class Part:
    """Queries and keys that are attended to in one call of the kernel: packed tokens, and places among the X."""

    queries: slice
    places: slice
    keys: slice
    is_causal: bool


def list_parts(paths: Sequence[Path]) -> tuple[Part, ...]:
    """Return the parts of attention of `paths` in order: every path to itself, then runs of paths to an ancestor."""
    own: list[Part] = []
    shared: dict[tuple[int, int], list[Part]] = {}
    place = 0
    for path in paths:
        queries, places = slice(path.start, path.end), slice(place, place + path.length)
        own.append(Part(queries, places, queries, is_causal=True))
        for ancestor in path.chain:
            runs = shared.setdefault(ancestor, [])
            if runs and runs[-1].queries.stop == path.start and runs[-1].places.stop == place:
                before = runs.pop()
                longer = slice(before.queries.start, path.end), slice(before.places.start, places.stop)
                runs.append(Part(*longer, slice(*ancestor), is_causal=False))
            else:
                runs.append(Part(queries, places, slice(*ancestor), is_causal=False))
        place = places.stop
    return (*own, *(part for runs in shared.values() for part in runs))


def attend_paths(q_HMD: Tensor, k_KMD: Tensor, v_KME: Tensor, paths: Sequence[Path], scaling: float) -> Tensor:
    """Return causal attention of the tokens of `paths`, one path after the other: (X, H·E)."""
    size, values = q_HMD.shape[2], v_KME.shape[2]
    if size != values:  # the kernel takes one size: zeros add nothing to scores and to outputs
        widest = max(size, values)
        q_HMD, k_KMD, v_KME = (F.pad(x, (0, widest - x.shape[2])) for x in (q_HMD, k_KMD, v_KME))
    out_XHD = _Paths.apply(q_HMD, k_KMD, v_KME, list_parts(paths), scaling)
    return out_XHD[..., :values].flatten(1)


class _Paths(torch.autograd.Function):
    """O, and for the backward pass O and L instead of the probabilities."""

    @staticmethod
    def forward(
        ctx: Any, q_HMD: Tensor, k_KMD: Tensor, v_KMD: Tensor, parts: tuple[Part, ...], scaling: float
    ) -> Tensor:
        heads, size = q_HMD.shape[0], sum(part.places.stop - part.places.start for part in parts if part.is_causal)
        out_XHD = q_HMD.new_empty(size, heads, q_HMD.shape[2])
        out_KRXD = _by_group(out_XHD.transpose(0, 1), len(k_KMD))
        lse_KRX = out_KRXD.new_empty(out_KRXD.shape[:3], dtype=torch.promote_types(q_HMD.dtype, torch.float32))
        for part, q_KRQD, k_KRND, v_KRND in _cut(q_HMD, k_KMD, v_KMD, parts):
            own_KRQD, own_KRQ = _forward(q_KRQD, k_KRND, v_KRND, 0.0, part.is_causal, scale=scaling)
            total_KRQD, total_KRQ = out_KRXD[:, :, part.places], lse_KRX[:, :, part.places]
            if part.is_causal:  # the first part of its queries
                total_KRQD.copy_(own_KRQD)
                total_KRQ.copy_(own_KRQ)
                continue
            merged_KRQ = torch.logaddexp(total_KRQ, own_KRQ)
            share_KRQ1 = (own_KRQ - merged_KRQ).exp_()[..., None].to(out_KRXD.dtype)
            total_KRQD.lerp_(own_KRQD, share_KRQ1.expand_as(own_KRQD))
            total_KRQ.copy_(merged_KRQ)
        ctx.save_for_backward(q_HMD, k_KMD, v_KMD, out_XHD, lse_KRX)
        ctx.parts, ctx.scaling = parts, scaling
        return out_XHD

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per output
        ctx: Any, grad_XHD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_HMD, k_KMD, v_KMD, out_XHD, lse_KRX = ctx.saved_tensors
        dq_HMD, dk_KMD, dv_KMD = (torch.zeros_like(x) for x in (q_HMD, k_KMD, v_KMD))
        dq_KRMD = _by_group(dq_HMD, len(k_KMD))
        out_KRXD, grad_KRXD = (_by_group(x.transpose(0, 1), len(k_KMD)) for x in (out_XHD, grad_XHD))
        for part, q_KRQD, k_KRND, v_KRND in _cut(q_HMD, k_KMD, v_KMD, ctx.parts):
            merged = (x[:, :, part.places] for x in (out_KRXD, lse_KRX))
            grads = (grad_KRXD[:, :, part.places], q_KRQD, k_KRND, v_KRND, *merged)
            dq_KRQD, dk_KRND, dv_KRND = _backward(*grads, 0.0, part.is_causal, scale=ctx.scaling)
            dq_KRMD[:, :, part.queries] += dq_KRQD
            dk_KMD[:, part.keys] += dk_KRND.sum(1) if dk_KRND.shape[1] > 1 else dk_KRND[:, 0]
            dv_KMD[:, part.keys] += dv_KRND.sum(1) if dv_KRND.shape[1] > 1 else dv_KRND[:, 0]
        return dq_HMD, dk_KMD, dv_KMD, None, None


def _by_group(x_HMD: Tensor, groups: int) -> Tensor:
    """Return query heads beside the key-value head that they share (K, R, M, D), as a view."""
    return x_HMD.unflatten(0, (groups, -1))


def _cut(
    q_HMD: Tensor, k_KMD: Tensor, v_KMD: Tensor, parts: tuple[Part, ...]
) -> Iterator[tuple[Part, Tensor, Tensor, Tensor]]:
    """Yield each part with views of its queries, keys and values; keys are not repeated for heads that share one."""
    q_KRMD = _by_group(q_HMD, len(k_KMD))
    repeats = q_KRMD.shape[1]
    for part in parts:
        keys, values = (x[:, None, part.keys].expand(-1, repeats, -1, -1) for x in (k_KMD, v_KMD))
        yield part, q_KRMD[:, :, part.queries], keys, values
