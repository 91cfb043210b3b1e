"""Every row once an epoch, in an order that depends on seed and step alone."""

import random

import numpy as np
import pytest

from learning.data.epochs import Epochs, Filled, sort_longest_first

LENGTHS = [random.Random(i).randint(1, 40) for i in range(53)]


def fill_sequences(lengths, order, budget):
    lengths = np.asarray(lengths)
    rows = sort_longest_first(lengths, np.asarray(order))
    filled = Filled(lengths[rows], budget)
    return [filled.members(rows, sequence) for sequence in range(filled.count)]


@pytest.mark.parametrize("budget", [None, 64])
def test_an_epoch_holds_every_row_once(budget):
    epochs = Epochs(LENGTHS, per_pass=2, passes=3, seed=1, budget=budget)
    seen = [r for step in range(epochs.steps_per_epoch) for rows in epochs.at(step) for r in rows]
    assert sorted(seen) == list(range(53))
    again = [
        r for step in range(epochs.steps_per_epoch) for rows in epochs.at(epochs.steps_per_epoch + step) for r in rows
    ]
    assert sorted(again) == list(range(53))
    assert again != seen


def test_the_order_follows_the_seed_and_needs_no_memory():
    one, other, third = (Epochs(LENGTHS, per_pass=4, passes=1, seed=s) for s in (1, 1, 2))
    assert other.at(40) == one.at(40)
    assert [one.at(s) for s in range(50)] == [other.at(s) for s in range(50)]
    assert [third.at(s) for s in range(50)] != [one.at(s) for s in range(50)]


def test_steps_are_of_the_size_asked_for_and_the_last_is_smaller():
    epochs = Epochs(LENGTHS, per_pass=4, passes=3, seed=0)
    assert epochs.steps_per_epoch == 5
    assert [[len(rows) for rows in epochs.at(s)] for s in range(5)] == [[4, 4, 4]] * 4 + [[4, 1]]


def test_filling_stays_within_the_budget_and_wastes_little():
    sequences = fill_sequences(LENGTHS, list(range(53)), 64)
    sizes = [sum(LENGTHS[r] for r in rows) for rows in sequences]
    assert max(sizes) <= 64
    assert sum(sizes) / (64 * len(sizes)) > 0.93
    # best fit: 6 goes to the sequence with room for exactly it, 3 to the next fuller one
    assert fill_sequences([6, 3, 10, 7, 4], [0, 1, 2, 3, 4], 10) == [[2], [3, 1], [0, 4]]


def test_the_number_of_packed_sequences_is_the_same_in_every_epoch():
    source = random.Random(0)
    counts = {len(fill_sequences(LENGTHS, source.sample(range(53), 53), 48)) for _ in range(20)}
    assert len(counts) == 1
