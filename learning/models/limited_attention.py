"""Exact attention over paths of a forest with sliding windows, capped scores and attention sinks, in linear memory.

Queries are processed in spans, with the keys that their windows reach. Probabilities are computed again in the backward
pass from the log-sum-exps (Dao et al. 2022, arXiv 2205.14135, algorithm 4). For scores s = scaling·q·k, with a cap c
they are c·tanh(s / c) (Gemma 2, arXiv 2408.00118, section 2); a sink of a head is one more score without a value
(gpt-oss).

Shapes: M packed tokens, X tokens of the paths, H query heads, K key-value heads, R = H / K, D head size (E that of
values), Q queries of a span, N keys that they reach.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learning.models.cpu_attention import Path

SCORES = 1 << 21
"""Scores of all heads that are in memory at once, at most, while a span has more than SHORTEST_SPAN queries."""
SHORTEST_SPAN, LONGEST_SPAN = 16, 128
"""Bounds of the queries of a span."""


@dataclass(frozen=True)
class Limits:
    """What restricts attention beyond causality."""

    window: int | None = None
    """Keys that a query reaches, itself included; None: all."""
    cap: float | None = None


@dataclass(frozen=True)
class Span:
    """Consecutive queries of a path, their place among the X, and the spans of packed tokens that they reach."""

    queries: slice
    places: slice
    keys: tuple[tuple[int, int], ...]
    absent_QN: Tensor


def attend_limited(
    q_HMD: Tensor,
    k_KMD: Tensor,
    v_KME: Tensor,
    sinks_H: Tensor | None,
    paths: Sequence[Path],
    scaling: float,
    limits: Limits,
) -> Tensor:
    """Return attention of the tokens of `paths`, one path after the other: (X, H·E)."""
    return _Limited.apply(q_HMD, k_KMD, v_KME, sinks_H, tuple(paths), scaling, limits).flatten(1)


def list_spans(paths: Sequence[Path], window: int | None, heads: int, device: torch.device) -> Iterator[Span]:
    """Yield the spans of all paths in order."""
    place = 0
    for path in paths:
        reach = path.before + path.length if window is None else min(window, path.before + path.length)
        size = max(SHORTEST_SPAN, min(LONGEST_SPAN, SCORES // (heads * reach)))
        for begin in range(path.start, path.end, size):
            end = min(begin + size, path.end)
            first, last = (path.before + token - path.start for token in (begin, end))
            lowest = 0 if window is None else max(0, first - window + 1)
            at_Q, at_N = torch.arange(first, last, device=device)[:, None], torch.arange(lowest, last, device=device)
            absent_QN = at_N > at_Q if window is None else (at_N > at_Q) | (at_N <= at_Q - window)
            yield Span(slice(begin, end), slice(place, place + end - begin), _reach(path, lowest, end), absent_QN)
            place += end - begin


def _reach(path: Path, lowest: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the spans of packed tokens of a path from position `lowest` to the packed token `end`."""
    spans, position = [], 0
    for start, stop in (*path.chain, (path.start, end)):
        skipped = max(0, lowest - position)
        if start + skipped < stop:
            spans.append((start + skipped, stop))
        position += stop - start
    return tuple(spans)


def _gather(x_KMD: Tensor, spans: tuple[tuple[int, int], ...]) -> Tensor:
    """Return the tokens of spans (K, N, D), as a view if there is one."""
    parts = [x_KMD[:, start:end] for start, end in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class _Limited(torch.autograd.Function):
    """O, with O and the log-sum-exps kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        q_HMD: Tensor,
        k_KMD: Tensor,
        v_KME: Tensor,
        sinks_H: Tensor | None,
        paths: tuple[Path, ...],
        scaling: float,
        limits: Limits,
    ) -> Tensor:
        heads, groups, size = len(q_HMD), len(k_KMD), sum(path.length for path in paths)
        out_XHE = v_KME.new_empty(size, heads, v_KME.shape[2])
        lse_HX = q_HMD.new_empty(heads, size, dtype=torch.promote_types(q_HMD.dtype, torch.float32))
        for span in list_spans(paths, limits.window, heads, q_HMD.device):
            keys_KND, values_KNE = _gather(k_KMD, span.keys), _gather(v_KME, span.keys)
            queries_KXD = _fold(q_HMD[:, span.queries], groups) * scaling
            scores_HQN, _ = _scores(queries_KXD, keys_KND, span.absent_QN, limits.cap)
            lse_HQ = scores_HQN.logsumexp(-1)
            if sinks_H is not None:
                lse_HQ = torch.logaddexp(lse_HQ, sinks_H.to(lse_HQ.dtype)[:, None])
            shares_HQN = scores_HQN.sub_(lse_HQ[..., None]).exp_().to(v_KME.dtype)
            values_KXE = torch.bmm(shares_HQN.view(groups, -1, shares_HQN.shape[2]), values_KNE)
            out_XHE[span.places] = values_KXE.view(heads, -1, values_KXE.shape[2]).transpose(0, 1)
            lse_HX[:, span.places] = lse_HQ
        ctx.save_for_backward(q_HMD, k_KMD, v_KME, sinks_H, out_XHE, lse_HX)
        ctx.paths, ctx.scaling, ctx.limits = paths, scaling, limits
        return out_XHE

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient per output
        ctx: Any, grad_XHE: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None, None]:
        q_HMD, k_KMD, v_KME, sinks_H, out_XHE, lse_HX = ctx.saved_tensors
        dq_HMD, dk_KMD, dv_KME = (torch.zeros_like(x) for x in (q_HMD, k_KMD, v_KME))
        heads, groups = len(q_HMD), len(k_KMD)
        delta_HX = (out_XHE * grad_XHE).sum(-1, dtype=lse_HX.dtype).T
        for span in list_spans(ctx.paths, ctx.limits.window, heads, q_HMD.device):
            keys_KND, values_KNE = _gather(k_KMD, span.keys), _gather(v_KME, span.keys)
            queries_KXD = _fold(q_HMD[:, span.queries], groups) * ctx.scaling
            grad_KXE = _fold(grad_XHE[span.places].transpose(0, 1), groups)
            scores_HQN, slope_HQN = _scores(queries_KXD, keys_KND, span.absent_QN, ctx.limits.cap)
            shares_HQN = scores_HQN.sub_(lse_HX[:, span.places, None]).exp_()
            dv_KNE = torch.bmm(_by_group(shares_HQN, groups).to(v_KME.dtype).transpose(1, 2), grad_KXE)
            ds_HQN = torch.bmm(grad_KXE, values_KNE.transpose(1, 2)).view_as(shares_HQN)
            ds_HQN = (ds_HQN - delta_HX[:, span.places, None]).mul_(shares_HQN)
            if slope_HQN is not None:
                ds_HQN.mul_(slope_HQN)
            ds_KXN = _by_group(ds_HQN, groups).to(q_HMD.dtype)
            dq_HMD[:, span.queries] = torch.bmm(ds_KXN, keys_KND).view(heads, -1, q_HMD.shape[2]) * ctx.scaling
            _add(dk_KMD, torch.bmm(ds_KXN.transpose(1, 2), queries_KXD), span.keys)
            _add(dv_KME, dv_KNE, span.keys)
        if sinks_H is None:
            return dq_HMD, dk_KMD, dv_KME, None, None, None, None
        dsinks_H = -((sinks_H.to(lse_HX.dtype)[:, None] - lse_HX).exp() * delta_HX).sum(1)
        return dq_HMD, dk_KMD, dv_KME, dsinks_H.to(sinks_H.dtype), None, None, None


def _fold(x_HQD: Tensor, groups: int) -> Tensor:
    """Return the queries of all heads that share a key-value head end to end: (K, R·Q, D)."""
    return x_HQD.unflatten(0, (groups, -1)).flatten(1, 2)


def _by_group(x_HQN: Tensor, groups: int) -> Tensor:
    """Return rows of the heads that share a key-value head end to end (K, R·Q, N), as a view."""
    return x_HQN.view(groups, -1, x_HQN.shape[2])


def _scores(
    queries_KXD: Tensor, keys_KND: Tensor, absent_QN: Tensor, cap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Return capped and masked scores (H, Q, N), in at least float32, and the slope of the cap."""
    scores_KXN = torch.bmm(queries_KXD, keys_KND.transpose(1, 2))
    scores_HQN = scores_KXN.view(-1, *absent_QN.shape).to(torch.promote_types(scores_KXN.dtype, torch.float32))
    slope_HQN = None
    if cap is not None:
        scores_HQN = scores_HQN.div_(cap).tanh_()
        slope_HQN = 1 - scores_HQN**2
        scores_HQN.mul_(cap)
    return scores_HQN.masked_fill_(absent_QN, -torch.inf), slope_HQN


def _add(total_KMD: Tensor, more_KND: Tensor, spans: tuple[tuple[int, int], ...]) -> None:
    """Add the gradients of gathered tokens to those of the packed ones."""
    sizes = [end - start for start, end in spans]
    for (start, end), part_KND in zip(spans, more_KND.split(sizes, 1), strict=True):
        total_KMD[:, start:end] += part_KND
