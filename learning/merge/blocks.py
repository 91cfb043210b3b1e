"""Long tensors in blocks: arithmetic one precision above the tensors, in memory that does not grow with them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from learning.models.weights import StoredTensor

Blocks = Tensor | StoredTensor
"""A tensor in memory, or one that stays in its file and is read block by block."""
BLOCK = 1 << 18
"""Elements alive at once; small enough for the processor's cache, large enough to hide the cost of a call."""
WIDER = {torch.float32: torch.float64, torch.float64: torch.float64}
"""Precision of the arithmetic; half precisions are computed in float32."""


def iterate_blocks(tensors: Sequence[Blocks]) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield consecutive flat blocks of equally shaped tensors, in the precision of the arithmetic."""
    wide, size = WIDER.get(tensors[0].dtype, torch.float32), tensors[0].numel()
    for start in range(0, size, BLOCK):
        where = slice(start, min(start + BLOCK, size))
        yield where, [_read_block(tensor, where).to(wide) for tensor in tensors]


def _read_block(tensor: Blocks, where: slice) -> Tensor:
    return tensor.read(where) if isinstance(tensor, StoredTensor) else tensor.reshape(-1)[where]


def apply_blockwise(rule: Callable[..., Tensor], tensors: Sequence[Blocks]) -> Tensor:
    """Return `rule(*blocks)` over all blocks; the result has shape and precision of the first tensor."""
    out = torch.empty(tensors[0].shape, dtype=tensors[0].dtype)
    flat = out.view(-1)
    for where, parts in iterate_blocks(tensors):
        flat[where] = rule(*parts)
    return out


def find_kth_magnitude(tensor: Blocks, base: Blocks, k: int) -> float:
    """Return the k-th largest |tensor − base| (k from 1), exact, in two passes and O(n).

    The bits of a magnitude order like the magnitude, so its upper 16 bits are a bucket: the first pass counts buckets,
    the second sorts only the bucket that holds the answer.
    """
    counts = torch.zeros(1 << 15, dtype=torch.int64)
    for _, (mine, theirs) in iterate_blocks([tensor, base]):
        counts += torch.bincount(_bucket((mine - theirs).abs_()), minlength=1 << 15)
    above = counts.flip(0).cumsum(0).flip(0)
    bucket = int((above >= k).nonzero().max())
    rank = k - int(above[bucket] - counts[bucket])
    members = []
    for _, (mine, theirs) in iterate_blocks([tensor, base]):
        magnitude = (mine - theirs).abs_()
        members.append(magnitude[_bucket(magnitude) == bucket])
    inside = torch.cat(members)
    return float(inside.kthvalue(len(inside) - rank + 1).values)


def _bucket(magnitude: Tensor) -> Tensor:
    """Return the upper 16 bits of non-negative floats."""
    if magnitude.dtype == torch.float64:
        return magnitude.view(torch.int64) >> 48
    return magnitude.view(torch.int32) >> 16
