"""Exact attention over paths of a forest with sliding windows, capped scores and attention sinks, in linear memory.

On a GPU, torch's FlexAttention computes this in one kernel over the packed row: a mask made from the forest says which
tiles of scores are computed whole, in part, or not at all. Below is what CPUs and the check of its numbers use.

Queries are processed in spans, with the keys that their windows reach. Probabilities are computed again in the backward
pass from the log-sum-exps (Dao et al. 2022, arXiv 2205.14135, algorithm 4). For scores s = scaling·q·k, with a cap c
they are c·tanh(s / c) (Gemma 2, arXiv 2408.00118, section 2); a sink of a head is one more score without a value
(gpt-oss).

Shapes: M packed tokens, X tokens of the paths, H query heads, K key-value heads, R = H / K, D head size (E that of
values), Q queries of a span, N keys that they reach, T tiles of TILE packed tokens, U runs of tokens within one segment
and tile.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from learning.models.cpu_attention import Path
from schemas.errors import StepError

SCORES = 1 << 21
"""Scores of all heads that are in memory at once, at most, while a span has more than SHORTEST_SPAN queries."""
SHORTEST_SPAN, LONGEST_SPAN = 16, 128
"""Bounds of the queries of a span."""
TILE = 128
"""Side of the squares of scores that FlexAttention computes or skips as a whole."""


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


# -- FlexAttention ----------------------------------------------------------------------------------------------------


class ForestMasks:
    """Which packed tokens each token of a forest attends to, as masks for FlexAttention: one for every window."""

    def __init__(self, borders_S1: Tensor, parents: list[int], at_M: Tensor) -> None:
        """Divide a forest with these borders and parents into runs; `at_M` are positions on a path."""
        self.size, self.device = len(at_M), at_M.device
        first_S, last_S = _number_subtrees(parents)
        begin_U = torch.cat([borders_S1, torch.arange(0, self.size, TILE)]).unique()[:-1]
        segment_U = torch.searchsorted(borders_S1, begin_U, right=True) - 1
        count_U = torch.diff(begin_U, append=borders_S1[-1:])
        self._tile_U = begin_U // TILE
        self._from_U = at_M.cpu()[begin_U]
        self._to_U = self._from_U + count_U - 1
        self._first_U, self._last_U = first_S[segment_U], last_S[segment_U]
        self._first_M, self._last_M = (
            x.repeat_interleave(count_U).to(self.device) for x in (self._first_U, self._last_U)
        )
        self._at_M = at_M
        self._made: dict[int | None, BlockMask] = {}

    def within(self, window: int | None) -> BlockMask:
        """Return the mask of attention to the last `window` tokens of a path; None: to all."""
        if window not in self._made:
            self._made[window] = self._make(window)
        return self._made[window]

    def _make(self, window: int | None) -> BlockMask:
        first_M, last_M, at_M = self._first_M, self._last_M, self._at_M

        def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            apart = at_M[query] - at_M[key]
            seen = (first_M[key] <= first_M[query]) & (first_M[query] <= last_M[key]) & (apart >= 0)
            return seen if window is None else seen & (apart < window)

        own_U, first_U, last_U = self._first_U[:, None], self._first_U, self._last_U
        on_path_UU = (first_U <= own_U) & (own_U <= last_U)
        least_UU = self._from_U[:, None] - self._to_U
        most_UU = self._to_U[:, None] - self._from_U
        some_UU, all_UU = on_path_UU & (most_UU >= 0), on_path_UU & (least_UU >= 0)
        if window is not None:
            some_UU, all_UU = some_UU & (least_UU < window), all_UU & (most_UU < window)
        runs_T = self._tile_U.bincount()
        full_TT = self._count(all_UU) == runs_T[:, None] * runs_T
        if self.size % TILE:  # the last tile is not whole
            full_TT[-1] = full_TT[:, -1] = False
        partial_TT = (self._count(some_UU) > 0) & ~full_TT
        lists = [x[None, None].to(self.device) for tiles in (partial_TT, full_TT) for x in _list_tiles(tiles)]
        return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=TILE, mask_mod=is_seen, seq_lengths=(self.size, self.size))

    def _count(self, pairs_UU: Tensor) -> Tensor:
        """Return how many pairs of runs of each pair of tiles are true (T, T)."""
        tiles = int(self._tile_U[-1]) + 1
        rows_TU = torch.zeros(tiles, len(pairs_UU), dtype=torch.long).index_add_(0, self._tile_U, pairs_UU.long())
        return torch.zeros(tiles, tiles, dtype=torch.long).index_add_(1, self._tile_U, rows_TU)


def _number_subtrees(parents: list[int]) -> tuple[Tensor, Tensor]:
    """Return each segment's place in an order in which descendants follow it directly, and its last descendant's."""
    sizes = [1] * len(parents)
    for segment in range(len(parents) - 1, -1, -1):
        if parents[segment] >= 0:
            sizes[parents[segment]] += sizes[segment]
    free: dict[int, int] = {-1: 0}
    first: list[int] = []
    for segment, parent in enumerate(parents):
        first.append(free[parent])
        free[parent] += sizes[segment]
        free[segment] = first[-1] + 1
    first_S = torch.tensor(first)
    return first_S, first_S + torch.tensor(sizes) - 1


def _list_tiles(tiles_TT: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many tiles of each row are true (T,), and their columns before all others (T, T)."""
    columns_TT = torch.argsort(tiles_TT.int(), dim=-1, descending=True, stable=True)
    return tiles_TT.sum(-1, dtype=torch.int32), columns_TT.int()


def _cap_scores(cap: float, like: Tensor) -> Callable[..., Tensor]:
    """Return how FlexAttention changes each score, by a tensor: a number would be compiled into the kernel."""
    limit = torch.full((), cap, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return lambda score, batch, head, query, key: limit * torch.tanh(score / limit)


@cache
def _compile_flex() -> Any:
    """Return FlexAttention as kernels that keep no scores; one kernel serves all lengths."""
    return torch.compile(flex_attention, dynamic=True)


def attend_flex(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    masks: ForestMasks,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Compute attention over the packed row by FlexAttention: (1, H, M, D) in, (1, M, H, E) out.

    A sink is one more score without a value: with the log-sum-exp L of the others and the sink s, the outputs are
    multiplied by exp(L) / (exp(L) + exp(s)). Raise StepError for dropout.
    """
    if dropout:
        raise StepError("packed forward: dropout of attention is not supported")
    if query.dtype != value.dtype:  # bf16 leaves rotated queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    window = sliding_window if sliding_window and sliding_window < masks.size else None
    flex: Any = _compile_flex() if query.is_cuda else flex_attention
    out_1HME, more = flex(
        query,
        key,
        value,
        score_mod=_cap_scores(softcap, value) if softcap else None,
        block_mask=masks.within(window),
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
        return_aux=AuxRequest(lse=s_aux is not None),
    )
    if s_aux is not None:
        lse_1HM: Tensor = more.lse
        share_1HM = torch.sigmoid(lse_1HM - s_aux.to(lse_1HM.dtype)[:, None])
        out_1HME = out_1HME * share_1HM[..., None].to(out_1HME.dtype)
    return out_1HME.transpose(1, 2).contiguous(), None
