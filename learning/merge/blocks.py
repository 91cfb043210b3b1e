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
    wide, size = _wide(tensors[0]), tensors[0].numel()
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
    """Return the k-th largest |tensor − base| (k from 1), exact, in O(n) and in memory that does not grow with n.

    The bits of a magnitude order like the magnitude. Each pass counts the next 16 bits of the magnitudes that agree
    with the answer in all bits before, until so few are left that they can be sorted: differences of bfloat16 weights
    take few values, of which millions are equal.
    """
    prefix, rank, shift = 0, k, 48 if _wide(tensor) == torch.float64 else 16
    while True:
        counts = torch.zeros(1 << 16, dtype=torch.int64)
        for bits in _iterate_magnitude_bits(tensor, base, prefix, shift + 16):
            counts += torch.bincount((bits >> shift) & 0xFFFF, minlength=1 << 16)
        above = counts.flip(0).cumsum(0).flip(0)
        digit = int((above >= rank).nonzero().max())
        rank -= int(above[digit] - counts[digit])
        prefix = prefix << 16 | digit
        if shift == 0:
            threshold = torch.tensor([prefix], dtype=_BITS[_wide(tensor)])
            break
        if int(counts[digit]) <= BLOCK:
            # Small tensors that outlive their blocks would keep the allocator from returning the blocks' memory.
            inside, filled = torch.empty(int(counts[digit]), dtype=_BITS[_wide(tensor)]), 0
            for bits in _iterate_magnitude_bits(tensor, base, prefix, shift):
                inside[filled : filled + len(bits)] = bits
                filled += len(bits)
            threshold = inside.kthvalue(len(inside) - rank + 1).values.view(1)
            break
        shift -= 16
    return float(threshold.view(_wide(tensor)))


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Integers of the width of a precision."""


def _wide(tensor: Blocks) -> torch.dtype:
    return WIDER.get(tensor.dtype, torch.float32)


def _iterate_magnitude_bits(tensor: Blocks, base: Blocks, prefix: int, shift: int) -> Iterator[Tensor]:
    """Yield, block by block, the bits of the magnitudes whose bits from `shift` on are `prefix`."""
    for _, (mine, theirs) in iterate_blocks([tensor, base]):
        bits = (mine - theirs).abs_().view(_BITS[mine.dtype])
        yield bits if shift == 8 * bits.itemsize else bits[bits >> shift == prefix]
