"""Attention over a forest of segments: each attends causally to itself and to its whole chain of ancestors.

There is no M x M mask. Segments are gathered into padded blocks of similar shape, only inside the attention call: roots
use a plain causal kernel, and children of one parent (a group of completions) share one copy of its keys. On a CPU,
roots within a range of lengths and long paths are not gathered (`learning.models.cpu_attention`). Windows, caps and
sinks are computed path by path (`learning.models.limited_attention`).

Shapes: M packed tokens, N families (one parent each), G children of a family, L longest child, P longest chain,
X their places in all blocks, Y those of their chains, K key-value heads, R query heads per key-value head, D head size
(E that of values, where it differs).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from learning.models.cpu_attention import LONGEST, SHORTEST, Path, Rows, attend_paths, attend_rows
from learning.models.limited_attention import Limits, attend_flex, attend_limited
from schemas.errors import StepError

NAME, VARLEN, BOTH = "posttrain_segments", "posttrain_varlen", "posttrain_both"
WASTE = 1.5
"""Largest ratio of a block's padded scores to those its segments need; above it, a new block begins."""
LONG_SCORES = 4096
"""Scores of a child, L·(P + L), from which torch's fused kernel is faster on a CPU, besides needing no memory for them.
"""


@dataclass(frozen=True)
class Block:
    """Families of similar shape, padded: N of them, G children, L tokens each, after a chain of P tokens (0: roots)."""

    shape: tuple[int, int, int, int]
    absent_NP: Tensor | None
    """Where a chain is padding; None: nowhere."""


@dataclass(frozen=True)
class Layout:
    """A forest divided into blocks: the packed token at each position of a block, and the position of each token.

    Padding holds the values of some real token: it is masked or ignored, and its gradient is 0.
    """

    blocks: list[Block]
    child_X: Tensor
    chain_Y: Tensor
    home_M: Tensor
    rows: Rows = ()
    """Roots in no block; their places come after those of the blocks."""
    long: tuple[Path, ...] = ()
    """Long paths in no block; their places come last."""
    paths: tuple[Path, ...] = ()
    """All segments that are not empty, in order."""

    @property
    def scores(self) -> int:
        """Return the scores of one head that blocks of children keep for the backward pass."""
        return sum(n * g * length * (p + length) for n, g, length, p in (b.shape for b in self.blocks) if p)

    @cached_property
    def all_scores(self) -> int:
        """Return the scores of one head that causal attention over all paths computes, windows aside."""
        return sum(path.length * path.before + path.length * (path.length + 1) // 2 for path in self.paths)

    @cached_property
    def longest(self) -> int:
        """Return the tokens of the longest path."""
        return max((path.before + path.length for path in self.paths), default=0)

    def to(self, device: torch.device | str) -> "Layout":
        """Return a copy on another device."""
        blocks = [Block(b.shape, None if b.absent_NP is None else b.absent_NP.to(device)) for b in self.blocks]
        child_X, chain_Y, home_M = (x.to(device) for x in (self.child_X, self.chain_Y, self.home_M))
        return replace(self, blocks=blocks, child_X=child_X, chain_Y=chain_Y, home_M=home_M)


def make_layout(starts: list[int], parents: list[int], *, on_cpu: bool = False) -> Layout:
    """Divide a forest into blocks, and with `on_cpu` into rows and long paths.

    `starts` are the S+1 segment borders, `parents` the index of each segment's parent (−1 for a root).
    """
    lengths = [b - a for a, b in pairwise(starts)]
    chains = measure_chains(lengths, parents)
    alone = {s for s, n in enumerate(lengths) if on_cpu and parents[s] < 0 and SHORTEST <= n <= LONGEST}
    long = {s for s, n in enumerate(lengths) if on_cpu and chains[s] == 0 and n > LONGEST}
    families: dict[tuple[int, int], list[int]] = {}
    for segment, (length, parent) in enumerate(zip(lengths, parents, strict=True)):
        # Siblings of very different lengths are kept apart: padding them to the longest would cost more than it shares.
        size_class = length.bit_length() if parent >= 0 else segment
        if length and segment not in alone | long:
            families.setdefault((parent, size_class), []).append(segment)
    for key, members in list(families.items()):
        longest = max(lengths[s] for s in members)
        if on_cpu and chains[members[0]] and longest * (chains[members[0]] + longest) >= LONG_SCORES:
            long |= set(families.pop(key))
    shapes = sorted((chains[m[0]], len(m), max(lengths[s] for s in m), m) for m in families.values())
    blocks, children, ancestry = [], [], []
    for group in _batches(shapes):
        block, child_X, chain_Y = _block(group, starts, parents)
        blocks.append(block)
        children.append(child_X)
        ancestry.append(chain_Y)
    empty = torch.zeros(0, dtype=torch.long)
    child_X, chain_Y = torch.cat([empty, *children]), torch.cat([empty, *ancestry])
    real_X = (child_X >= 0).nonzero()[:, 0]
    home_M = torch.empty(starts[-1], dtype=torch.long).index_put((child_X[real_X],), real_X)
    place = len(child_X)
    for segment in [*sorted(alone), *sorted(long)]:
        home_M[starts[segment] : starts[segment + 1]] = torch.arange(place, place + lengths[segment])
        place += lengths[segment]
    rows = tuple((starts[s], starts[s + 1]) for s in sorted(alone))
    paths = {s: Path(starts[s], starts[s + 1], list_ancestors(s, starts, parents)) for s, n in enumerate(lengths) if n}
    places = (child_X.clamp(min=0), chain_Y.clamp(min=0), home_M)
    return Layout(blocks, *places, rows, tuple(paths[s] for s in sorted(long)), tuple(paths.values()))


def measure_chains(lengths: list[int], parents: list[int]) -> list[int]:
    """Return the number of tokens before each segment on its path."""
    chains: list[int] = []
    for parent in parents:
        chains.append(chains[parent] + lengths[parent] if parent >= 0 else 0)
    return chains


def _batches(shapes: list[tuple[int, int, int, list[int]]]) -> list[list[tuple[int, int, int, list[int]]]]:
    """Return the families in batches: neighbours in sorted order share one while padding stays below WASTE."""
    batches: list[list[tuple[int, int, int, list[int]]]] = []
    needed = 0
    for shape in shapes:
        chain, count, longest, _ = shape
        area = count * longest * (chain + longest)
        if batches and bool(batches[-1][0][0]) == bool(chain):
            p, g, length = _largest([*batches[-1], shape])
            padded = (len(batches[-1]) + 1) * g * length * (p + length)
            if padded <= WASTE * (needed + area):
                batches[-1].append(shape)
                needed += area
                continue
        batches.append([shape])
        needed = area
    return batches


def _largest(shapes: list[tuple[int, int, int, list[int]]]) -> tuple[int, int, int]:
    """Return the longest chain, the most children and the longest child of some families."""
    chains, counts, lengths, _ = zip(*shapes, strict=True)
    return max(chains), max(counts), max(lengths)


def _block(
    shapes: list[tuple[int, int, int, list[int]]], starts: list[int], parents: list[int]
) -> tuple[Block, Tensor, Tensor]:
    """Return one batch of families: its block, its children's places and its chains' places, −1 at padding."""
    chain, count, longest = _largest(shapes)
    child_NGL = torch.full((len(shapes), count, longest), -1, dtype=torch.long)
    chain_NP = torch.full((len(shapes), chain), -1, dtype=torch.long)
    for n, (*_, members) in enumerate(shapes):
        for g, segment in enumerate(members):
            length = starts[segment + 1] - starts[segment]
            child_NGL[n, g, :length] = torch.arange(starts[segment], starts[segment + 1])
        if before := [torch.arange(*span) for span in list_ancestors(members[0], starts, parents)]:
            chain_NP[n, : sum(map(len, before))] = torch.cat(before)
    absent_NP = chain_NP < 0
    block = Block((len(shapes), count, longest, chain), absent_NP if bool(absent_NP.any()) else None)
    return block, child_NGL.flatten(), chain_NP.flatten()


def list_ancestors(segment: int, starts: list[int], parents: list[int]) -> tuple[tuple[int, int], ...]:
    """Return the spans of packed tokens of the non-empty segments before one on its path, the root first."""
    spans: list[tuple[int, int]] = []
    while (segment := parents[segment]) >= 0:
        if starts[segment] < starts[segment + 1]:
            spans.append((starts[segment], starts[segment + 1]))
    return tuple(spans[::-1])


def _roots(q_XC: Tensor, k_XC: Tensor, v_XC: Tensor, block: Block, heads: tuple[int, int], scaling: float) -> Tensor:
    """Return causal attention of each root to itself: (N·G·L, H·D). Right padding is never seen by a real token."""
    n, g, length, _ = block.shape
    q, k, v = (
        x.view(n * g, length, h, -1).transpose(1, 2)
        for x, h in ((q_XC, heads[0] * heads[1]), (k_XC, heads[0]), (v_XC, heads[0]))
    )
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=heads[1] > 1)
    return out.transpose(1, 2).reshape(n * g * length, -1)


def _families(
    q_XC: Tensor,
    k_XC: Tensor,
    v_XC: Tensor,
    far_k_YC: Tensor,
    far_v_YC: Tensor,
    block: Block,
    heads: tuple[int, int],
    scaling: float,
) -> Tensor:
    """Return attention of children to their parent's chain, read once per family, and to themselves: (N·G·L, H·D)."""
    (n, g, length, p), (k, r) = block.shape, heads
    q = q_XC.view(n, g, length, k, r, -1).permute(0, 3, 1, 4, 2, 5).contiguous() * scaling
    own_k, own_v = (x.view(n, g, length, k, -1).permute(0, 3, 1, 2, 4) for x in (k_XC, v_XC))
    far_k, far_v = (x.view(n, p, k, -1).transpose(1, 2) for x in (far_k_YC, far_v_YC))
    d, e = q.shape[-1], own_v.shape[-1]
    far = (q.view(n, k, g * r * length, d) @ far_k.transpose(-1, -2)).view(n, k, g, r, length, p)
    own = (q.view(n, k, g, r * length, d) @ own_k.transpose(-1, -2)).view(n, k, g, r, length, length)
    if block.absent_NP is not None:
        far = far.masked_fill_(block.absent_NP[:, None, None, None, None], -torch.inf)
    later_LL = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = torch.cat([far, own.masked_fill_(later_LL, -torch.inf)], -1)
    share = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(q.dtype)
    far_share, own_share = share.split([p, length], -1)
    out = (far_share.reshape(n, k, g * r * length, p) @ far_v).view(n, k, g, r, length, e)
    out = out + (own_share.reshape(n, k, g, r * length, length) @ own_v).view(n, k, g, r, length, e)
    return out.permute(0, 2, 4, 1, 3, 5).reshape(n * g * length, -1)


def _by_row(query: Tensor, key: Tensor, value: Tensor, rows: Rows, scaling: float) -> Tensor:
    """Return attention of the roots that are in no block: (Σ lengths, H·D)."""
    if query.dtype in (torch.float32, torch.float64):
        return attend_rows(query.squeeze(0), key.squeeze(0), value.squeeze(0), rows, scaling)
    gqa = query.shape[1] > key.shape[1]
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=scaling, enable_gqa=gqa
        )
        for a, b in rows
    ]
    return torch.cat(parts, 2).squeeze(0).transpose(0, 1).flatten(1)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers' AttentionInterface: (1, H, M, D) in, (1, M, H, D) out.

    Raise StepError for dropout.
    """
    if dropout:
        raise StepError("packed forward: dropout of attention is not supported")
    if query.dtype != value.dtype:  # bf16 leaves rotated queries and keys in float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    window = sliding_window if sliding_window and sliding_window < layout.longest else None
    if window or softcap or s_aux is not None:
        given = (query.squeeze(0), key.squeeze(0), value.squeeze(0), s_aux, layout.paths)
        return attend_limited(*given, scaling, Limits(window, softcap)).view(
            1, query.shape[2], query.shape[1], -1
        ), None
    heads = (key.shape[1], query.shape[1] // key.shape[1])
    pieces = _in_blocks(query, key, value, layout, heads, scaling) if layout.blocks else []
    if layout.rows:
        pieces.append(_by_row(query, key, value, layout.rows, scaling))
    if layout.long:
        pieces.append(attend_paths(query.squeeze(0), key.squeeze(0), value.squeeze(0), layout.long, scaling))
    # Rows alone and long paths alone are in order: each token is in its place.
    in_order = len(pieces) == 1 and not layout.blocks
    out_MC = pieces[0] if in_order else torch.cat(pieces).index_select(0, layout.home_M)
    return out_MC.view(1, query.shape[2], query.shape[1], -1), None


def _in_blocks(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, heads: tuple[int, int], scaling: float
) -> list[Tensor]:
    """Return attention of the tokens at all places of each block."""
    q_MC, k_MC, v_MC = (x.squeeze(0).transpose(0, 1).flatten(1) for x in (query, key, value))
    places = [n * g * length for n, g, length, _ in (b.shape for b in layout.blocks)]
    before = [n * p for n, _, _, p in (b.shape for b in layout.blocks)]
    own = [x.index_select(0, layout.child_X).split(places) for x in (q_MC, k_MC, v_MC)]
    far = [x.index_select(0, layout.chain_Y).split(before) for x in (k_MC, v_MC)]
    return [
        _families(q, k, v, far_k, far_v, block, heads, scaling)
        if block.shape[-1]
        else _roots(q, k, v, block, heads, scaling)
        for block, q, k, v, far_k, far_v in zip(layout.blocks, *own, *far, strict=True)
    ]


def attend_both(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    pairs: list[tuple[Tensor, Tensor]],
    s_aux: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """Compute attention as `attend`, and add to `pairs` its outputs and gradients and those of `attend_flex`."""
    inputs = [x.detach().requires_grad_() for x in (query, key, value, s_aux) if x is not None]
    results: list[list[Tensor]] = []
    attentions: tuple[Any, Any] = (attend, attend_flex)
    for function in attentions:
        with torch.enable_grad():
            out, _ = function(module, *inputs[:3], None, s_aux=inputs[3] if inputs[3:] else None, **given)
            weight = torch.arange(out.numel(), device=out.device, dtype=torch.float32).cos().view_as(out)
            results.append([out.detach(), *torch.autograd.grad((out * weight).sum(), inputs)])
    pairs += zip(results[1], results[0], strict=True)
    return results[0][0], None


for _name, _function in ((NAME, attend), (VARLEN, attend_flex), (BOTH, attend_both)):
    AttentionInterface.register(_name, _function)
