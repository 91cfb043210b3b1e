"""A cluster in virtual time: replicas that generate with continuous batching, and weight transfers.

The training loop is ordinary code that advances virtual time (`Clock.sleep`, `Clock.until`); replicas and environments
are simpy events. Completions are lengths instead of tokens.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from simulated_time import Clock


@dataclass(frozen=True)
class Costs:
    """Seconds that things take."""

    decode_base: float
    """A decode step of a replica, whatever runs."""
    decode_each: float
    """More of it for every sequence that runs."""
    prefill_token: float
    """A token of a prompt, or of a completion that goes on, computed on a replica."""
    train_token: float
    """A token of the update, on one GPU."""
    train_step: float = 0.0
    """An optimiser step beside that."""
    sync: float = 0.0
    """From the trainer's new weights to all replicas having them; the trainer waits for it."""
    load: float = 0.0
    """How long a replica stands still to take new weights."""
    swap: float = 0.0
    """From generating to training and back where both take turns on the same GPUs."""
    decode_context: float = 0.0
    """More of a decode step for every token before the new one, of every sequence that runs."""
    start: float = 0.0
    """A run's beginning and its end."""


@dataclass(frozen=True)
class Work:
    """What an iteration asks for: groups, their size, tokens, seconds in the environment."""

    groups: int
    size: int
    prompt: int
    lengths: Callable[[np.random.Generator, int], np.ndarray]
    """Tokens of completions."""
    latencies: Callable[[np.random.Generator, int], np.ndarray]
    """Seconds in the environment after a completion has ended, before it can be scored."""
    longest: int = 2**31
    """Tokens that no completion exceeds."""
    slower: Callable[[np.ndarray], np.ndarray | float] = lambda lengths: 1.0
    """Factors on the latencies of completions of such lengths."""


@dataclass(eq=False)
class Completion:
    """One completion: its tokens in all, and those that were sampled by each version."""

    group: "Group"
    length: int
    latency: float
    spans: list[tuple[int, int]] = field(default_factory=list)
    done: int = 0
    finish: str = "suspended"

    @property
    def ids(self) -> range:
        """As many as tokens."""
        return range(self.done)


@dataclass(eq=False)
class Group:
    """As `learning.sampling.groups_in_flight.GroupInFlight`, with completions that are lengths."""

    iteration: int
    place: int
    members: list[Completion] = field(default_factory=list)
    sent: bool = False
    samples: list[Completion] = field(default_factory=list)
    scored: int | None = None
    num_scored: int = 0
    """Completions that have been scored."""

    @property
    def order(self) -> tuple[int, int]:
        """That of being asked for."""
        return self.iteration, self.place

    @property
    def tokens(self) -> int:
        """Of its completions."""
        return sum(one.length for one in self.members)


class Replica:
    """Continuous batching: every sequence that runs gets one token per step, which takes longer the more there are.

    `progress` counts steps; a sequence ends when it has grown by what it lacked. k steps of n sequences with C tokens
    before them take k (base + n each + C context) + k² n context / 2.
    """

    def __init__(self, pool: "Pool", slots: int):
        self.pool, self.clock, self.slots = pool, pool.clock, slots
        self.running: list[tuple[float, int, Completion]] = []
        self.progress = self.last = self.tokens = self.busy = 0.0
        self.lag = self.contexts = 0.0
        """Tokens before the new ones less those that `progress` counts; and those of all steps, summed."""
        self.still_until = 0.0
        self.version = 0
        self._timer = self._count = 0

    @property
    def context(self) -> float:
        """Tokens before the new ones, now."""
        return self.lag + len(self.running) * self.progress

    def step(self) -> tuple[float, float]:
        """Seconds of the next decode step, and by how much each is longer than the one before it."""
        costs, count = self.pool.costs, len(self.running)
        first = costs.decode_base + costs.decode_each * count + costs.decode_context * self.context
        return first, costs.decode_context * count

    def settle(self) -> None:
        """Bring `progress` up to now."""
        passed = self.clock.now - max(self.last, min(self.still_until, self.clock.now))
        self.last = self.clock.now
        if self.running and passed > 0:
            first, more = self.step()
            steps = 2 * passed / (first + math.sqrt(first * first + 2 * more * passed))
            self.contexts += steps * (self.context + steps * len(self.running) / 2)
            self.progress += steps
            self.tokens += steps * len(self.running)
            self.busy += passed

    def start(self, ones: Sequence[Completion]) -> None:
        """Prefill, then decode with what runs."""
        self.settle()
        for one in ones:
            self._count += 1
            heapq.heappush(self.running, (self.progress + one.length - one.done, self._count, one))
            self.lag += self.pool.work.prompt + one.done - self.progress
        self.stand_still(sum(self.pool.work.prompt + one.done for one in ones) * self.pool.costs.prefill_token)

    def stand_still(self, seconds: float) -> None:
        """Decode nothing for so long."""
        self.settle()
        self.still_until = max(self.still_until, self.clock.now) + seconds
        self.plan()

    def plan(self) -> None:
        """Be woken when the next sequence ends."""
        self._timer += 1
        if self.running:
            (first, more), steps = self.step(), max(0.0, self.running[0][0] - self.progress)
            wait = max(0.0, self.still_until - self.clock.now) + steps * (first + more * steps / 2)
            self.clock.after(wait, lambda mine=self._timer: self.due(mine))

    def due(self, timer: int) -> None:
        """Sequences end, others take their places."""
        if timer != self._timer:
            return
        self.settle()
        ended = []
        while self.running and self.running[0][0] <= self.progress + 1e-6:
            end, _, one = heapq.heappop(self.running)
            self.lag += end - self.pool.work.prompt - one.length
            ended.append(one)
        for one in ended:
            self.grown(one, one.length)
            one.finish = "stop"
        taken = self.pool.take(self.slots - len(self.running))
        self.start(taken) if taken else self.plan()
        for one in ended:
            self.pool.ended(one)

    def grown(self, one: Completion, to: int) -> None:
        """Write down which version sampled the tokens since the last time."""
        if to > one.done:
            one.spans.append((self.version, to - one.done))
            one.done = to

    def account(self) -> None:
        """Bring every completion that runs up to now."""
        self.settle()
        for end, _, one in self.running:
            self.grown(one, min(one.length, one.length - round(end - self.progress)))

    def load(self, version: int, costs: Costs, recompute: bool) -> None:
        """New weights: what runs has its prefixes computed again."""
        self.account()
        self.version = version
        again = sum(self.pool.work.prompt + one.done for _, _, one in self.running) if recompute else 0
        self.stand_still(costs.load + again * costs.prefill_token)

    def clear(self) -> list[Completion]:
        """Take everything out."""
        self.account()
        taken, self.running, self.lag = [one for *_, one in self.running], [], 0.0
        self.plan()
        return taken


class Pool:
    """Replicas with one queue before them, from which each takes when it has room."""

    def __init__(self, clock: Clock, costs: Costs, work: Work, replicas: int, slots: int):
        self.clock, self.costs, self.work = clock, costs, work
        self.queue: deque[Completion] = deque()
        self.replicas = [Replica(self, slots) for _ in range(replicas)]
        self.heard: Callable[[Completion], None] = lambda one: None
        self.count = 0
        self.counted = False
        """Whether somebody waits for single completions."""

    def submit(self, ones: Sequence[Completion]) -> None:
        """Queue completions; the least loaded replicas take them first."""
        self.queue.extend(ones)
        room = [(len(r.running), i, []) for i, r in enumerate(self.replicas) if len(r.running) < r.slots]
        heapq.heapify(room)
        given: dict[int, list[Completion]] = {}
        while self.queue and room:
            load, i, mine = heapq.heappop(room)
            mine.append(self.queue.popleft())
            given[i] = mine
            if load + 1 < self.replicas[i].slots:
                heapq.heappush(room, (load + 1, i, mine))
        for i, mine in given.items():
            self.replicas[i].start(mine)

    def take(self, room: int) -> list[Completion]:
        """The next in the queue."""
        return [self.queue.popleft() for _ in range(min(room, len(self.queue)))]

    def ended(self, one: Completion) -> None:
        """Tell who waits for it."""
        self.count += 1
        self.clock.news += self.counted
        self.heard(one)

    def load(self, version: int, *, recompute: bool) -> None:
        """New weights for all."""
        for replica in self.replicas:
            replica.load(version, self.costs, recompute)

    def drain(self) -> None:
        """Return when nothing runs."""
        self.counted = True
        self.clock.until(lambda: not self.queue and not any(replica.running for replica in self.replicas))
        self.counted = False

    def suspend(self) -> list[Completion]:
        """Take everything out."""
        left = [one for replica in self.replicas for one in replica.clear()] + list(self.queue)
        self.queue.clear()
        return left

    def told(self) -> tuple[float, float]:
        """Seconds that replicas were decoding, and tokens, summed."""
        for replica in self.replicas:
            replica.settle()
        return sum(r.busy for r in self.replicas), sum(r.tokens for r in self.replicas)

    def mean_context(self) -> float:
        """Tokens before a new one, in the mean over all that were decoded."""
        tokens = sum(r.tokens for r in self.replicas)
        return sum(r.contexts for r in self.replicas) / tokens if tokens else 0.0
