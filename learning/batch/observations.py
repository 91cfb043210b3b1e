"""What an environment answered in a batch: the observed tokens, each with the sampled token before it.

Shapes: M tokens of all segments, T sampled tokens, O observed tokens.
"""

import torch
from torch import Tensor

from learning.batch.batch import Batch


def locate_observed(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the places (O,) among M of the observed tokens, and for each the place among T of the token it follows.

    That is the last token of the turn that was answered. What was observed before the first token of a path that is
    trained on has none, and is left out.
    """
    at_O = batch.tokens["observed"].nonzero()[:, 0]
    before_O = torch.searchsorted(batch.sampled_T, at_O) - 1
    owner_M = batch.tokens["owner"]
    known_O = before_O >= 0
    if known_O.any():
        known_O = known_O & (owner_M[batch.sampled_T[before_O.clamp(min=0)]] == owner_M[at_O])
    return at_O[known_O], before_O[known_O]


def count_observed(batch: Batch) -> Tensor:
    """Return the number of tokens (T,) that were observed after each sampled token."""
    return locate_observed(batch)[1].bincount(minlength=len(batch.sampled_T))


def measure_surprise(batch: Batch, lp_M: Tensor) -> Tensor:
    """Return the mean of −log p (T,) over the tokens observed after each sampled token; 0 where there are none."""
    at_O, before_O = (index.to(lp_M.device) for index in locate_observed(batch))
    count_T = count_observed(batch).to(lp_M).clamp(min=1)
    return lp_M.new_zeros(len(count_T)).index_add(0, before_O, -lp_M[at_O]) / count_T
