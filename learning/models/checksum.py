"""Checksums that show whether two tensors are bit-identical, computed on the tensor's device.

Integer sums modulo 2^64 do not depend on the order of addition, so a GPU and a CPU agree. They detect missing, swapped
or incomplete weights; they do not protect against forged weights.

Shapes: W words of 32 bits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 2**22
"""Words that are converted to 64 bits at once."""


class Checksum(NamedTuple):
    """Type, shape and sums of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    total: int
    """Sum of the words."""
    placed: int
    """Sum of the words times an odd number that depends on their position."""

    def __str__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype} {shape} {self.total & (2**64 - 1):016x}{self.placed & (2**64 - 1):016x}"


@torch.no_grad()
def compute_checksum(tensor: Tensor) -> Checksum:
    """Return the checksum of a tensor's type, shape and bits."""
    byte_X = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if rest := -len(byte_X) % 4:
        byte_X = torch.cat([byte_X, byte_X.new_zeros(rest)])
    word_W = byte_X.view(torch.int32) if byte_X.storage_offset() % 4 == 0 else byte_X.clone().view(torch.int32)
    total_1 = torch.zeros((), dtype=torch.int64, device=tensor.device)
    placed_1 = torch.zeros_like(total_1)
    for start in range(0, len(word_W), CHUNK):
        wide_W = word_W[start : start + CHUNK].long()
        factor_W = torch.arange(start, start + len(wide_W), device=tensor.device) * 0x9E3779B97F4A7C1 | 1
        total_1 += wide_W.sum()
        placed_1 += (wide_W * factor_W).sum()
    name = str(tensor.dtype).removeprefix("torch.")
    return Checksum(name, tuple(tensor.shape), int(total_1), int(placed_1))
