"""The product's own `Stream` in virtual time.

The scheduling is not simulated: which iteration is requested when, what is waited for and which groups are passed on is
decided by `Stream` itself. A virtual clock replaces threads, and replicas of `simulated_cluster` replace services.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from simulated_cluster import Completion, Group, Pool

from learning.streaming.stream import Stream


class SimulatedStream(Stream):
    """The product's stream in virtual time: `take` and `each` are its own."""

    def __init__(self, pool: Pool, seed: int):
        self.pool, self.clock, self.rng = pool, pool.clock, np.random.default_rng(seed)
        self.groups, self.requested, self.sizes, self.num_scored = [], 0, {}, 0
        self.changed, self.interrupt, self.counts = threading.RLock(), True, self
        self.waited = self._began = 0.0
        self._least = self._given = 0
        pool.heard = self.heard

    def open(self, sampler: Any, score: Any, *, interrupt: bool, steps_per_update: int | None) -> None:
        """Say how it goes in this iteration."""
        self.interrupt, self._began = interrupt, self.clock.now

    def request(self, iteration: int, requests: Any) -> None:
        """Draw the groups of an iteration."""
        work = self.pool.work
        count = work.groups * work.size
        lengths = work.lengths(self.rng, count)
        drawn = zip(lengths, work.latencies(self.rng, count) * work.slower(lengths), strict=True)
        for place in range(work.groups):
            group = Group(iteration, place)
            group.members = [Completion(group, int(n), float(s)) for n, s in islice(drawn, work.size)]
            self.groups.append(group)
        self.sizes[iteration], self.requested = work.groups, iteration + 1

    def launch(self) -> None:
        """Send off what has not been sent."""
        new = [group for group in self.groups if not group.sent]
        for group in new:
            group.sent = True
        self.pool.submit([one for group in new for one in group.members])

    def heard(self, one: Completion) -> None:
        """A completion has ended; after its time in the environment it is scored."""
        self.clock.after(one.latency, lambda: self._landed(one.group))

    def _landed(self, group: Group) -> None:
        group.num_scored += 1
        if group.num_scored == len(group.members):
            group.samples, group.scored, self.num_scored = group.members, self.num_scored, self.num_scored + 1
            self.clock.news += 1

    def take(self, step: int, due: int) -> list[Any]:
        """As it is; it need not look before there can be enough."""
        self._least = min(self.sizes[step], len(self.groups))
        batch = super().take(step, due)
        self._least = 0
        return batch

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let virtual time pass."""
        self.clock.until(lambda: self.num_scored - self._given >= self._least and condition())

    def count_taken(self, *arguments: Any) -> None:
        """The trainer had to wait since the iteration began."""
        self.waited += self.clock.now - self._began

    def _hand_out(self, chosen: Sequence[Any]) -> list[Any]:
        gone = {id(group) for group in chosen}
        self.groups = [group for group in self.groups if id(group) not in gone]
        self._given += len(chosen)
        return [one for group in chosen for one in group.samples]
