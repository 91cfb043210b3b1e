"""Weight of every sampled token in the loss, computed once per optimiser step over the whole mini-batch.

The loss of a micro-batch is then a plain sum, so that the gradient does not depend on how the mini-batch is split.
Dropped tokens (truncated completions, when the stage leaves them out) always weigh 0; with `count_dropped` they still
count in the denominator. `by` is the unit of weight 1: an episode of several paths weighs as much as one of a single
path.

Shapes: T sampled tokens of the mini-batch.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.observations import count_observed

Unit = Literal["episode", "path", "group", "prompt", "family"]


def token_mean(batch: Batch, *, count_dropped: bool = False) -> Tensor:
    """Mean over all tokens of the mini-batch (DAPO, Yu et al. 2025, eq. 8)."""
    kept_T, counted_T = _make_masks(batch, count_dropped)
    return kept_T / counted_T.sum().clamp(min=1)


def sequence_mean(batch: Batch, *, by: Unit = "episode", count_dropped: bool = False) -> Tensor:
    """Mean over sequences of the mean over their tokens (GRPO, Shao et al. 2024, eq. 3)."""
    return _average_means(*_make_masks(batch, count_dropped), batch.key(by)[batch.path_T])


def turn_mean(batch: Batch, *, count_dropped: bool = False) -> Tensor:
    """Mean over the turns of all episodes of the mean over their tokens (released code of DART, Li et al. 2025)."""
    turn_T = batch.sampled("turn")
    width = int(turn_T.max()) + 1 if len(turn_T) else 1
    return _average_means(*_make_masks(batch, count_dropped), batch.path_T * width + turn_T)


def observed_mean(batch: Batch, *, count_dropped: bool = False) -> Tensor:
    """Mean over what environments answered: a token weighs as many as were observed after it.

    With the term `observation_cross_entropy` this is the mean over all observed tokens of the mini-batch.
    """
    kept_T, counted_T = _make_masks(batch, count_dropped)
    observed_T = count_observed(batch)
    return kept_T * observed_T / (counted_T * observed_T).sum().clamp(min=1)


def constant(
    batch: Batch,
    max_completion_length: int,
    *,
    length: Annotated[float, Field(gt=0)] | None = None,
    by: Unit = "episode",
    count_dropped: bool = False,
) -> Tensor:
    """Mean over sequences of the sum over their tokens divided by a constant (Dr.GRPO, Liu et al. 2025).

    `length` null is the stage's max_completion_length; 1 gives the plain sum over each sequence.
    """
    kept_T, counted_T = _make_masks(batch, count_dropped)
    sequences = batch.key(by)[batch.path_T][counted_T > 0].unique().numel()
    return kept_T / (max(sequences, 1) * float(length or max_completion_length))


def nested_mean(
    batch: Batch, *, levels: Annotated[list[Unit], Field(min_length=1)], count_dropped: bool = False
) -> Tensor:
    """Nested means: over the first unit, of the mean over the second, and so on, of the mean over tokens.

    `[group, path]` gives every prompt the same weight, whatever the number of its completions, and within a prompt
    every completion, whatever its length.
    """
    kept_T, counted_T = _make_masks(batch, count_dropped)
    weight_T, above_T = kept_T, torch.zeros_like(batch.path_T)
    for level in levels:
        unit_T = torch.stack([above_T, batch.key(level)[batch.path_T]]).unique(dim=1, return_inverse=True)[1]
        pairs = torch.stack([above_T, unit_T])[:, counted_T > 0].unique(dim=1)
        units = torch.bincount(pairs[0], minlength=len(above_T) + 1)
        weight_T, above_T = weight_T / units[above_T].clamp(min=1), unit_T
    tokens = torch.zeros(len(above_T) + 1, dtype=torch.float64).index_add(0, above_T, counted_T)
    return weight_T / tokens[above_T].clamp(min=1)


def _average_means(kept_T: Tensor, counted_T: Tensor, key_T: Tensor) -> Tensor:
    """Return the weights of a mean over keys of the mean over their tokens."""
    index_T = key_T.unique(return_inverse=True)[1]
    tokens = torch.zeros(int(index_T.max()) + 1 if len(index_T) else 0, dtype=torch.float64)
    tokens.index_add_(0, index_T, counted_T)
    return kept_T / tokens.clamp(min=1)[index_T] / (tokens > 0).sum().clamp(min=1)


def _make_masks(batch: Batch, count_dropped: bool) -> tuple[Tensor, Tensor]:
    """Return masks of the tokens with a weight and of those in the denominator, as 0 and 1 in float64."""
    kept_T = (~batch.sampled("dropped")).double()
    return kept_T, torch.ones_like(kept_T) if count_dropped else kept_T
