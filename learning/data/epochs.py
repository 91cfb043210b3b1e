"""The order in which rows are trained on: a function of the seed and the step, so that nothing needs to be kept.

In memory: the length of every row and the order of an epoch, some 30 bytes per row and not a list of lists.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

PIECE = 1 << 16
"""Rows whose lengths are Python numbers at a time."""


class Epochs:
    """Cuts shuffled epochs into optimiser steps of `passes` forward passes with `per_pass` sequences each.

    A sequence is one row or, with a `budget`, as many rows as fit into that many tokens. The last step of an epoch
    may be smaller; no row is dropped or repeated within an epoch. Without `shuffle` the rows keep their order, and a
    budget is not possible.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        per_pass: int,
        passes: int,
        seed: int,
        budget: int | None = None,
        shuffle: bool = True,
    ):
        self.shuffle = shuffle
        self.lengths, self.per_pass, self.passes, self.seed = np.asarray(lengths, np.int64), per_pass, passes, seed
        # Which rows of an epoch share a sequence depends on the sorted lengths alone: they are the same in every epoch.
        self._filled = None if budget is None else Filled(-np.sort(-self.lengths), budget)
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)
        count = len(self.lengths) if self._filled is None else self._filled.count
        self.steps_per_epoch = math.ceil(count / (per_pass * passes))

    def at(self, step: int) -> list[list[int]]:
        """Return the row numbers of each forward pass of a step (0-based)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        size = self.per_pass * self.passes
        rows, sequences = self._shuffled(epoch)
        if sequences is None or self._filled is None:
            taken = rows[within * size : (within + 1) * size].tolist()
            return [taken[i : i + self.per_pass] for i in range(0, len(taken), self.per_pass)]
        chosen = sequences[within * size : (within + 1) * size].tolist()
        groups = [chosen[i : i + self.per_pass] for i in range(0, len(chosen), self.per_pass)]
        filled = self._filled
        return [[row for sequence in group for row in filled.members(rows, sequence)] for group in groups]

    def uses(self, steps: int) -> np.ndarray:
        """Return how often each row is among the first so many steps; whole epochs hold each row once."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        counts = np.full(len(self.lengths), epochs, np.int64)
        for step in range(steps - rest, steps):
            for rows in self.at(step):
                counts[rows] += 1
        return counts

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows of an epoch in order; with a budget, sorted for `Filled`, and the order of the sequences."""
        if not self.shuffle:
            return np.arange(len(self.lengths)), None
        source = np.random.default_rng([self.seed, epoch])
        order = source.permutation(len(self.lengths))
        if self._filled is None:
            return order, None
        return sort_longest_first(self.lengths, order), source.permutation(self._filled.count)


class Filled:
    """Sequences of at most `budget` tokens made of rows whose `sizes`, longest first, are given.

    Best-fit decreasing (Ding et al. 2024, arXiv 2404.10830): each row goes where it leaves the least room, of equals to
    the first. A row longer than the budget is a sequence of its own.
    """

    def __init__(self, sizes: np.ndarray, budget: int):
        places = np.empty(len(sizes), np.int32)
        self.count = 0
        waiting: list[list[int]] = [[] for _ in range(budget + 1)]
        rooms = 0  # bit r is set when a sequence with room for r tokens is waiting
        for start in range(0, len(sizes), PIECE):
            for i, size in enumerate(sizes[start : start + PIECE].tolist(), start):
                if fitting := rooms >> size:
                    left = size + (fitting & -fitting).bit_length() - 1
                    place = heappop(waiting[left])
                    rooms ^= 0 if waiting[left] else 1 << left
                else:
                    left, place = budget, self.count
                    self.count += 1
                places[i] = place
                if left > size:
                    heappush(waiting[left - size], place)
                    rooms |= 1 << (left - size)
        self._members = np.argsort(places, kind="stable")
        self._starts = np.searchsorted(places[self._members], np.arange(self.count + 1))

    def members(self, rows: np.ndarray, sequence: int) -> list[int]:
        """Return the rows of a sequence; `rows` are all of them, longest first."""
        return rows[self._members[self._starts[sequence] : self._starts[sequence + 1]]].tolist()


def sort_longest_first(lengths: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return rows by falling length; those of equal length as they stand in `order`."""
    return order[np.argsort(-lengths[order], kind="stable")]
