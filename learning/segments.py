"""Attention over a forest of segments: each sees itself causally and its whole chain of ancestors, nothing else.

No M x M mask exists. Segments are gathered into padded blocks of similar shape, inside the attention call only: roots
go through a plain causal kernel, and children of one parent (a group of completions) share one copy of its keys.

Shapes: M packed tokens, N families (one parent each), G children of a family, L longest child, P longest chain,
K key-value heads, R query heads per key-value head, D head width.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from schemas.errors import StepError

NAME = "posttrain_segments"
WASTE = 1.5
"""A block may hold this many times the scores its segments need; beyond it a new block is begun."""


@dataclass(frozen=True)
class Gather:
    """Rows of a packed tensor in padded places: `index_X` is −1 at padding, `inverse_M` the way back.

    `inverse_M` is None where a row is in several places.
    """

    index_X: Tensor
    inverse_M: Tensor | None

    @classmethod
    def of(cls, index_X: Tensor, num_rows: int) -> "Gather":
        """Prepare both directions for `num_rows` packed rows."""
        flat = index_X.flatten()
        real = flat >= 0
        inverse_M = torch.full((num_rows,), -1, dtype=torch.long)
        inverse_M[flat[real]] = torch.arange(len(flat))[real]
        unique = int((inverse_M >= 0).sum()) == int(real.sum())
        return cls(index_X, inverse_M if unique else None)


@dataclass(frozen=True)
class Block:
    """Families of similar shape; `chain` is None for roots."""

    child: Gather
    chain: Gather | None


def _take(x_MC: Tensor, index_X: Tensor) -> Tensor:
    """Rows by index; zeros where the index is −1."""
    flat = index_X.flatten()
    taken = x_MC.index_select(0, flat.clamp(min=0))
    if bool((flat < 0).any()):
        taken = taken.masked_fill((flat < 0)[:, None], 0)
    return taken


class _Rows(torch.autograd.Function):
    """Gather whose backward is a gather as well (scatter-adds are slow and need not be deterministic)."""

    @staticmethod
    def forward(ctx: Any, x_MC: Tensor, index_X: Tensor, inverse_M: Tensor | None) -> Tensor:
        ctx.index_X, ctx.inverse_M, ctx.num_rows = index_X, inverse_M, x_MC.shape[0]
        return _take(x_MC, index_X)

    @staticmethod
    def backward(ctx: Any, grad_XC: Tensor) -> tuple[Tensor, None, None]:
        if ctx.inverse_M is not None:
            return _take(grad_XC, ctx.inverse_M), None, None
        flat = ctx.index_X.flatten()
        real = (flat >= 0).nonzero()[:, 0]
        grad_MC = grad_XC.new_zeros(ctx.num_rows, grad_XC.shape[1])
        return grad_MC.index_add_(0, flat[real], grad_XC[real]), None, None


def rows(x_MC: Tensor, gather: Gather) -> Tensor:
    """`x_MC` in the places of `gather`: (*index shape, C), zero at padding."""
    return _Rows.apply(x_MC, gather.index_X, gather.inverse_M).view(*gather.index_X.shape, -1)


def make_blocks(starts: list[int], parents: list[int]) -> tuple[list[Block], Gather]:
    """Cut a forest into blocks, and say where each packed token lies in their concatenated outputs.

    `starts` are the S+1 segment borders, `parents` the index of each segment's parent (−1 for a root).
    """
    lengths = [b - a for a, b in pairwise(starts)]
    chains = chain_lengths(lengths, parents)
    families: dict[tuple[int, int], list[int]] = {}
    for segment, (length, parent) in enumerate(zip(lengths, parents, strict=True)):
        # Siblings of very different lengths are kept apart: padding them to the longest would cost more than it shares.
        size_class = max(length, 1).bit_length() if parent >= 0 else segment
        if length:
            families.setdefault((parent, size_class), []).append(segment)
    shapes = sorted(
        (parent >= 0, chains[m[0]], len(m), max(lengths[s] for s in m), m) for (parent, _), m in families.items()
    )
    blocks = [_block(group, starts, lengths, parents) for group in _batches(shapes)]
    flat = torch.cat([b.child.index_X.flatten() for b in blocks]) if blocks else torch.zeros(0, dtype=torch.long)
    home_M = Gather.of(flat, starts[-1]).inverse_M
    assert home_M is not None
    return blocks, Gather.of(home_M, len(flat))


def chain_lengths(lengths: list[int], parents: list[int]) -> list[int]:
    """Tokens before each segment on its path."""
    chains: list[int] = []
    for parent in parents:
        chains.append(chains[parent] + lengths[parent] if parent >= 0 else 0)
    return chains


def _batches(shapes: list[tuple]) -> list[list[tuple]]:
    """Neighbours in sorted order share a block while padding stays below WASTE."""
    batches: list[list[tuple]] = []
    needed = 0
    for shape in shapes:
        _, chain, count, longest, _ = shape
        area = count * longest * (chain + longest)
        if batches and batches[-1][0][0] == shape[0]:
            trial = [*batches[-1], shape]
            widest = [max(s[i] for s in trial) for i in (1, 2, 3)]
            padded = len(trial) * widest[1] * widest[2] * (widest[0] + widest[2])
            if padded <= WASTE * (needed + area):
                batches[-1].append(shape)
                needed += area
                continue
        batches.append([shape])
        needed = area
    return batches


def _block(shapes: list[tuple], starts: list[int], lengths: list[int], parents: list[int]) -> Block:
    """Index tensors of one batch of families."""
    is_child, total = shapes[0][0], starts[-1]
    chain, count, longest = (max(s[i] for s in shapes) for i in (1, 2, 3))
    child_NGL = torch.full((len(shapes), count, longest), -1, dtype=torch.long)
    chain_NP = torch.full((len(shapes), chain), -1, dtype=torch.long)
    for n, (*_, members) in enumerate(shapes):
        for g, segment in enumerate(members):
            child_NGL[n, g, : lengths[segment]] = torch.arange(starts[segment], starts[segment + 1])
        before = ancestors(members[0], starts, parents)
        chain_NP[n, : len(before)] = before
    return Block(Gather.of(child_NGL, total), Gather.of(chain_NP, total) if is_child else None)


def ancestors(segment: int, starts: list[int], parents: list[int]) -> Tensor:
    """Packed indices of all tokens before a segment on its path, in order."""
    spans: list[Tensor] = []
    while (segment := parents[segment]) >= 0:
        spans.append(torch.arange(starts[segment], starts[segment + 1]))
    return torch.cat(spans[::-1]) if spans else torch.zeros(0, dtype=torch.long)


def _roots(q_MC: Tensor, k_MC: Tensor, v_MC: Tensor, block: Block, heads: tuple[int, int], scaling: float) -> Tensor:
    """Causal attention of each root to itself; returns (N·L, H·D). Right padding is never seen by a real token."""
    n, _, longest = block.child.index_X.shape
    q, k, v = (
        rows(x, block.child).view(n, longest, h, -1).transpose(1, 2)
        for x, h in ((q_MC, heads[0] * heads[1]), (k_MC, heads[0]), (v_MC, heads[0]))
    )
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=heads[1] > 1)
    return out.transpose(1, 2).reshape(n * longest, -1)


def _families(q_MC: Tensor, k_MC: Tensor, v_MC: Tensor, block: Block, heads: tuple[int, int], scaling: float) -> Tensor:
    """Attention of children to their parent's chain, read once per family, and to themselves; returns (N·G·L, H·D)."""
    assert block.chain is not None
    (n, g, length), (k, r), p = block.child.index_X.shape, heads, block.chain.index_X.shape[1]
    q = rows(q_MC, block.child).view(n, g, length, k, r, -1).permute(0, 3, 1, 4, 2, 5).contiguous() * scaling
    own_k, own_v = (rows(x, block.child).view(n, g, length, k, -1).permute(0, 3, 1, 2, 4) for x in (k_MC, v_MC))
    far_k, far_v = (rows(x, block.chain).view(n, p, k, -1).transpose(1, 2) for x in (k_MC, v_MC))
    d = q.shape[-1]
    far = (q.view(n, k, g * r * length, d) @ far_k.transpose(-1, -2)).view(n, k, g, r, length, p)
    own = (q.view(n, k, g, r * length, d) @ own_k.transpose(-1, -2)).view(n, k, g, r, length, length)
    padded_NP = (block.chain.index_X < 0)[:, None, None, None, None]
    if bool(padded_NP.any()):
        far = far.masked_fill_(padded_NP, -torch.inf)
    later_LL = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = torch.cat([far, own.masked_fill_(later_LL, -torch.inf)], -1)
    share = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(q.dtype)
    far_share, own_share = share.split([p, length], -1)
    out = (far_share.reshape(n, k, g * r * length, p) @ far_v).view(n, k, g, r, length, d)
    out = out + (own_share.reshape(n, k, g, r * length, length) @ own_v).view(n, k, g, r, length, d)
    return out.permute(0, 2, 4, 1, 3, 5).reshape(n * g * length, -1)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    blocks: tuple[list[Block], Gather],
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """An attention function for transformers' AttentionInterface: (1, H, M, D) in, (1, M, H, D) out.

    Raises StepError for attention that is more than causal softmax (windows, caps, sinks) and for dropout.
    """
    if dropout or sliding_window or softcap or s_aux is not None:
        raise StepError("packed forward: dropout, sliding windows, capped scores and attention sinks are not supported")
    q_MC, k_MC, v_MC = (x.squeeze(0).transpose(0, 1).flatten(1) for x in (query, key, value))
    heads = (key.shape[1], query.shape[1] // key.shape[1])
    pieces = [(_families if b.chain else _roots)(q_MC, k_MC, v_MC, b, heads, scaling) for b in blocks[0]]
    out_MC = rows(torch.cat(pieces), blocks[1])
    return out_MC.view(1, query.shape[2], query.shape[1], -1), None


AttentionInterface.register(NAME, attend)
