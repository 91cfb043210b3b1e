"""Sums and means over the tokens of each path, at every one of its tokens; gradients flow through.

Shapes: T sampled tokens; `path_T` is the path of each.
"""

import torch
from torch import Tensor

from learning.batch.columns import place


def sum_of_path(values_T: Tensor, path_T: Tensor) -> Tensor:
    """Sum over the path."""
    index_T = path_T.unique(return_inverse=True)[1]
    size = int(index_T.max()) + 1 if len(index_T) else 0
    zeros = torch.zeros(size, dtype=values_T.dtype, device=values_T.device)
    return zeros.index_add(0, index_T, values_T)[index_T]


def mean_of_path(values_T: Tensor, path_T: Tensor) -> Tensor:
    """Mean over the path."""
    return sum_of_path(values_T, path_T) / sum_of_path(torch.ones_like(values_T), path_T)


def any_of_path(flags_T: Tensor, path_T: Tensor) -> Tensor:
    """Whether a token of the path is flagged."""
    return sum_of_path(flags_T.double(), path_T) > 0


def sum_of_later(values_T: Tensor, path_T: Tensor) -> Tensor:
    """Sum over the later tokens of the path."""
    index_T = path_T.unique(return_inverse=True)[1]
    from_start_T, from_end_T = place(index_T)
    if not len(index_T):
        return values_T
    padded_PL = values_T.new_zeros(int(index_T.max()) + 1, int(from_start_T.max()) + 1)
    padded_PL[index_T, from_end_T] = values_T
    return padded_PL.cumsum(1)[index_T, from_end_T] - values_T
