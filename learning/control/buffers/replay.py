"""Which kept steps a batch has: drawn evenly, or by their priorities (Schaul et al. 2016).

The places of all kept steps are numbered through: those of the data first, then those of the ring of own steps.
Shapes: C places, B steps of a batch.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learning.control.buffers.buffer import Buffer
from schemas.number_schedules import ScheduledFloat

SMALLEST = 1e-6
"""Added to every error, so that no kept step is never drawn again."""


def td_error(error_B: np.ndarray, *, alpha: Annotated[ScheduledFloat, Field(ge=0)] = 0.6) -> np.ndarray:
    """Return (|δ| + 1e−6)^alpha of the last temporal-difference errors; 0: all steps are equally likely."""
    return (error_B + SMALLEST) ** alpha


class Priorities:
    """Masses of C places in a binary tree of sums: to draw or change B of them takes B log C."""

    def __init__(self, capacity: int) -> None:
        self.size = 1 << max(0, capacity - 1).bit_length()
        self.tree = np.zeros(2 * self.size)
        self.largest = 1.0
        """Mass of a step that no update has seen yet."""

    def set(self, place_B: np.ndarray, mass_B: np.ndarray) -> None:
        """Change the masses of some places."""
        node = np.asarray(place_B) + self.size
        self.tree[node] = mass_B
        while len(node) and node[0] > 1:
            node = np.unique(node // 2)
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]

    def sum_before(self, place: int) -> float:
        """Return the mass of all places before one."""
        node, total = place + self.size, 0.0
        if place == self.size:
            return float(self.tree[1])
        while node > 1:
            total += float(self.tree[node - 1]) if node % 2 else 0.0
            node //= 2
        return total

    def find(self, mass_B: np.ndarray) -> np.ndarray:
        """Return the places at which the sum of masses passes the given ones; never one without mass."""
        node, left_over = np.ones(len(mass_B), dtype=np.int64), mass_B.copy()
        while len(node) and node[0] < self.size:
            left = self.tree[2 * node]
            goes_right = (left_over >= left) & (self.tree[2 * node + 1] > 0)
            left_over -= np.where(goes_right, left, 0.0)
            node = 2 * node + goes_right
        return node - self.size

    def add(self, place_B: np.ndarray) -> None:
        """Give new steps the largest mass so far, so that each is drawn soon."""
        self.set(place_B, np.full(len(place_B), self.largest))

    def update(self, place_B: np.ndarray, mass_B: np.ndarray) -> None:
        """Change masses after an update."""
        self.set(place_B, mass_B)
        self.largest = max(self.largest, float(mass_B.max()))

    def save(self) -> Tensor:
        """Return the masses of all places, and the largest one so far."""
        return torch.from_numpy(np.append(self.tree[self.size :], self.largest))

    def restore(self, saved: Tensor) -> None:
        """Take the masses that `save` returned."""
        values = saved.numpy()
        self.set(np.arange(self.size), values[:-1])
        self.largest = float(values[-1])


def draw_batch(
    parts: Sequence[Buffer], size: int, share: float | None, priorities: Priorities | None, correction: float
) -> Any:
    """Return a batch of the steps of one or two buffers, evenly or with `share` from the first.

    With priorities, steps are drawn by their masses m, and the batch has `place` and `priority_weight`: (N m / Σ m)^−β
    over the N steps of their buffer, β being the correction (Schaul et al. 2016, section 3.4).
    """
    counts = [len(part) for part in parts]
    if len(parts) == 1 or share is None:
        ranges = [(0, sum(counts), size)]
    else:
        of_data = round(size * share)
        ranges = [(counts[0], counts[1], size - of_data), (0, counts[0], of_data)]
    drawn = [draw_places(first, count, wanted, priorities, correction) for first, count, wanted in ranges]
    place_B, weight_B = (torch.cat(one) for one in zip(*reversed(drawn), strict=True))
    if len(parts) == 1:
        batch: Any = parts[0].make_batch(place_B)
    else:
        first, second = parts
        of_first = place_B < len(first)
        order = torch.cat([of_first.nonzero()[:, 0], (~of_first).nonzero()[:, 0]])
        batch = torch.cat([first.make_batch(place_B[of_first]), second.make_batch(place_B[~of_first] - len(first))])
        place_B, weight_B = place_B[order], weight_B[order]
    return batch if priorities is None else batch.update({"place": place_B, "priority_weight": weight_B})


def draw_places(
    first: int, count: int, wanted: int, priorities: Priorities | None, correction: float
) -> tuple[Tensor, Tensor]:
    """Return places from `first` on, evenly or by their masses, with their weights."""
    if priorities is None:
        return torch.randint(count, (wanted,)) + first, torch.ones(wanted)
    before, after = priorities.sum_before(first), priorities.sum_before(first + count)
    drawn = before + torch.rand(wanted, dtype=torch.float64).numpy() * (after - before)
    place_B = np.clip(priorities.find(drawn), first, first + count - 1)
    probability_B = priorities.tree[priorities.size + place_B] / (after - before)
    weight_B = (count * probability_B) ** -correction
    return torch.from_numpy(place_B), torch.from_numpy(weight_B).float()
