"""Mixtures whose weights change with the progress of training: which source each row of the mixture is of.

The bounds of all `during` cut the mixture into segments. In each, the sources that are active there share the rows in
proportion to their weights, in random order.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from learning.data.sources.shares import divide
from schemas.errors import StepError
from schemas.stages.data import Data, Source


def count_segments(stage: Data, there: Sequence[int]) -> list[list[int]]:
    """Return for each segment the rows of each source; `there` are the rows that each source has.

    Without `max_rows` the total is the largest at which no source has more rows than it has. Raise StepError if that
    is none.
    """
    bounds = list_bounds(stage)
    weights = np.array([[_get_weight(s, start, end) for s in stage.sources] for start, end in bounds])
    lengths = np.array([end - start for start, end in bounds])
    shares = (weights / weights.sum(1, keepdims=True) * lengths[:, None]).sum(0)
    total = stage.max_rows or int(min(rows / share for rows, share in zip(there, shares, strict=True)) * (1 + 1e-12))
    while total > 0:
        counts = _count_at(weights, bounds, total)
        # The whole numbers of a segment may be one more than the shares.
        if stage.max_rows or (np.array(counts).sum(0) <= there).all():
            return counts
        total -= 1
    raise StepError("data: the sources have too few rows for their weights and `during`")


def _count_at(weights: np.ndarray, bounds: list[tuple[float, float]], total: int) -> list[list[int]]:
    ends = [round(end * total) for _, end in bounds]
    starts = [0, *ends[:-1]]
    return [divide(row, end - start) for row, start, end in zip(weights, starts, ends, strict=True)]


def list_bounds(stage: Data) -> list[tuple[float, float]]:
    """Return the segments [start, end) of progress in which the same sources are active."""
    marks = sorted({0.0, 1.0, *(mark for source in stage.sources for mark in source.during or ())})
    return list(pairwise(marks))


def _get_weight(source: Source, start: float, end: float) -> float:
    first, last = source.during or (0.0, 1.0)
    return (source.weight or 0.0) if first <= start and end <= last else 0.0


def order_sources(counts: Sequence[Sequence[int]], seed: int) -> np.ndarray:
    """Return the source of each row of the mixture, in order, from the rows of each source in each segment."""
    parts = []
    for number, segment in enumerate(counts):
        sources = np.repeat(np.arange(len(segment), dtype=np.int16), segment)
        parts.append(np.random.default_rng([seed, number, 1]).permutation(sources))
    return np.concatenate(parts)
