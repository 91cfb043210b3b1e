"""The order in which rows are trained on: a function of the seed and the step, so that nothing needs to be kept."""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import lru_cache

import numpy as np


class Epochs:
    """Cuts shuffled epochs into optimiser steps of `passes` forward passes with `per_pass` sequences each.

    A sequence is one row or, with a `budget`, as many rows as fit into that many tokens. The last step of an epoch
    may be smaller; no row is dropped or repeated within an epoch.
    """

    def __init__(self, lengths: Sequence[int], *, per_pass: int, passes: int, seed: int, budget: int | None = None):
        self.lengths, self.per_pass, self.passes, self.seed, self.budget = lengths, per_pass, passes, seed, budget
        self._sequences = lru_cache(maxsize=2)(self._shuffled)
        self.steps_per_epoch = math.ceil(len(self._sequences(0)) / (per_pass * passes))

    def at(self, step: int) -> list[list[int]]:
        """Row numbers of each forward pass of a step (0-based)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        size = self.per_pass * self.passes
        sequences = self._sequences(epoch)[within * size : (within + 1) * size]
        groups = [sequences[i : i + self.per_pass] for i in range(0, len(sequences), self.per_pass)]
        return [[row for sequence in group for row in sequence] for group in groups]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        source = np.random.default_rng([self.seed, epoch])
        order = source.permutation(len(self.lengths)).tolist()
        if self.budget is None:
            return [[row] for row in order]
        filled = fill(self.lengths, order, self.budget)
        return [filled[i] for i in source.permutation(len(filled)).tolist()]


def fill(lengths: Sequence[int], order: Sequence[int], budget: int) -> list[list[int]]:
    """Put rows into sequences of at most `budget` tokens: longest first, each where it leaves the least room.

    Best-fit decreasing (Ding et al. 2024, arXiv 2404.10830). Rows of equal length are taken in `order`, and the number
    of sequences does not depend on it. A row longer than the budget is a sequence of its own.
    """
    sequences: list[list[int]] = []
    room: list[tuple[int, int]] = []
    for row in sorted(order, key=lambda row: -lengths[row]):
        found = bisect_left(room, (lengths[row], -1))
        if found < len(room):
            left, place = room.pop(found)
            sequences[place].append(row)
        else:
            left, place = budget, len(sequences)
            sequences.append([row])
        if left > lengths[row]:
            insort(room, (left - lengths[row], place))
    return sequences
