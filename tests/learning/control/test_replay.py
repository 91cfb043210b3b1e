"""Prioritised replay: places are drawn by their masses, and weights undo it."""

import numpy as np
import pytest
import torch

from learning.control.buffers.buffer import Buffer
from learning.control.buffers.replay import Priorities, draw_batch, td_error
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import Transitions

SPACES = Spaces(1, 2)


def fill(count, first=0):
    """A buffer whose rewards are the numbers of its rows."""
    number, nothing = np.arange(first, first + count), np.zeros(count, bool)
    observation = number[:, None].astype(np.float32)
    buffer = Buffer(count, SPACES)
    buffer.add(Transitions(SPACES, number, number, observation, number % 2, number, observation, nothing, nothing))
    return buffer


def prioritise(masses):
    priorities = Priorities(len(masses))
    priorities.set(np.arange(len(masses)), np.array(masses, float))
    return priorities


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_the_tree_finds_places_and_sums_as_cumulative_sums_do(count):
    rng = np.random.default_rng(count)
    mass = rng.random(count) * (rng.random(count) < 0.7) + 0.0
    mass[-1] = 0.5
    priorities = prioritise(mass)
    sums = np.cumsum(mass)
    assert [priorities.sum_before(k) for k in range(count + 1)] == pytest.approx([0, *sums])
    drawn = rng.random(200) * sums[-1]
    assert priorities.find(drawn).tolist() == np.searchsorted(sums, drawn, side="right").tolist()
    changed = rng.permutation(count)[: 1 + count // 2]
    mass[changed] = rng.random(len(changed)) + 0.1
    priorities.set(changed, mass[changed])
    sums = np.cumsum(mass)
    drawn = rng.random(200) * sums[-1]
    assert priorities.find(drawn).tolist() == np.searchsorted(sums, drawn, side="right").tolist()
    assert mass[priorities.find(np.array([0.0, sums[-1]]))].all()


def test_a_restored_tree_has_the_same_bits():
    rng = np.random.default_rng(0)
    first = prioritise(rng.random(11))
    for _ in range(5):
        first.update(rng.permutation(11)[:4], rng.random(4) * 3)
    second = Priorities(11)
    second.restore(first.save())
    assert np.array_equal(first.tree, second.tree)
    assert first.largest == second.largest > 1
    second.add(np.array([2]))
    assert second.tree[second.size + 2] == first.largest


def test_priorities_are_powers_of_errors():
    assert td_error(np.array([0.0, 4.0]), alpha=0.5).tolist() == pytest.approx([1e-3, 2.0], rel=1e-4)
    assert td_error(np.array([0.0, 4.0]), alpha=0.0).tolist() == [1, 1]


def test_steps_are_drawn_in_proportion_to_their_masses_and_weights_undo_it():
    """Masses 1, 2, 3, 4: shares .1 to .4; with β = 1 weights 1 / (4 · share), whose mean over draws is 1."""
    torch.manual_seed(0)
    batch = draw_batch([fill(4)], 40000, None, prioritise([1, 2, 3, 4]), 1.0)
    counts = np.bincount(batch["place"].numpy(), minlength=4) / 40000
    assert counts == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    assert torch.equal(batch["next", "reward"][:, 0], batch["place"].float())
    expected = torch.tensor([2.5, 1.25, 5 / 6, 0.625])[batch["place"]]
    assert torch.allclose(batch["priority_weight"], expected)
    assert batch["priority_weight"].mean().item() == pytest.approx(1, abs=0.01)
    halved = draw_batch([fill(4)], 50, None, prioritise([1, 2, 3, 4]), 0.5)
    assert torch.allclose(halved["priority_weight"], torch.tensor([2.5, 1.25, 5 / 6, 0.625])[halved["place"]].sqrt())


@pytest.mark.parametrize("share", [None, 0.25])
def test_both_buffers_are_drawn_by_their_masses_and_places_stay_with_their_steps(share):
    """Data 0 to 2 with masses 1, 1, 2 and own steps 3 and 4 with masses 0 and 4."""
    torch.manual_seed(1)
    parts, priorities = [fill(3), fill(2, 3)], prioritise([1, 1, 2, 0, 4])
    batch = draw_batch(parts, 20000, share, priorities, 1.0)
    assert torch.equal(batch["next", "reward"][:, 0], batch["place"].float())
    of_data = 0.5 if share is None else share
    counts = np.bincount(batch["place"].numpy(), minlength=5) / 20000
    assert counts == pytest.approx([of_data / 4, of_data / 4, of_data / 2, 0, 1 - of_data], abs=0.015)
    probability = np.array([1 / 8, 1 / 8, 2 / 8, 1, 4 / 8]) if share is None else np.array([1 / 4, 1 / 4, 2 / 4, 1, 1])
    count = np.array([5] * 5 if share is None else [3, 3, 3, 2, 2])
    expected = torch.from_numpy(1 / (count * probability))[batch["place"]].float()
    assert torch.allclose(batch["priority_weight"], expected)


def test_without_priorities_all_are_equally_likely_and_nothing_is_added():
    torch.manual_seed(2)
    parts = [fill(3), fill(1, 3)]
    batch = draw_batch(parts, 8000, None, None, 0.4)
    assert set(batch.keys()) == {"observation", "action", "next"}
    counts = np.bincount(batch["next", "reward"][:, 0].long().numpy(), minlength=4) / 8000
    assert counts == pytest.approx([0.25] * 4, abs=0.02)
