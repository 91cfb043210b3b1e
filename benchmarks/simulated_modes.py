"""Modes of rollout and training in virtual time: the trainer's side of a run, with the product's rollout functions."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from simulated_cluster import Completion, Costs, Pool, Work
from simulated_stream import SimulatedStream
from simulated_time import Clock
from simulation_inputs import Cluster

from learning.collection.rollouts.streaming import one_step_off, periodic, streamed

WARM_UP = 4
"""First iterations, which are not counted: pipelines fill."""


@dataclass
class Found:
    """What a run tells."""

    seconds: list[float]
    """Of every iteration."""
    tokens: list[int]
    """Trained on in every iteration."""
    staleness: dict[int, int]
    """Tokens by how many versions they were old when they were trained on."""
    generating: float
    """Share of the time of replicas in which they decoded."""
    filled: float
    """Tokens generated over those of replicas that are always full."""
    training: float
    """Share of the time of the GPUs that train in which they do."""
    lengths: list[float]
    """Mean length of what was trained on, by iteration."""
    total: float
    """Seconds of the whole run, with its first iterations, beginning and end."""


class Loop:
    """The trainer's side of a run."""

    def __init__(self, cluster: Cluster, costs: Costs, work: Work, seed: int, *, colocated: bool = False):
        self.cluster, self.costs, self.work, self.clock = cluster, costs, work, Clock()
        replicas, trainers = cluster.apart
        if colocated:
            replicas, trainers = cluster.gpus // cluster.gpus_per_replica, cluster.gpus
        self.trainers = trainers
        self.pool = Pool(self.clock, costs, work, replicas, cluster.slots)
        self.stream = SimulatedStream(self.pool, seed)
        self.version, self.trained = 0, 0.0
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        self.lengths: list[float] = []
        self.staleness: dict[int, int] = {}
        self.start = (0.0, 0.0, 0.0, 0.0)
        self.clock.sleep(costs.start)

    def compute(self, completions: list[Completion]) -> None:
        """The gradient of some completions."""
        tokens = sum(one.length for one in completions) + len(completions) / self.work.size * self.work.prompt
        spent = tokens * self.costs.train_token / self.trainers
        self.trained += spent
        self.clock.sleep(spent)

    def publish(self, *, recompute: bool) -> None:
        """The optimiser's step, and new weights for all replicas."""
        self.trained += self.costs.train_step
        self.clock.sleep(self.costs.train_step)
        self.version += 1
        if not self.stream.interrupt:
            self.pool.drain()
        self.clock.sleep(self.costs.sync)
        self.pool.load(self.version, recompute=recompute)

    def note(self, completions: list[Completion], step: int, began: float) -> None:
        """Write down an iteration."""
        if step < WARM_UP:
            self.start = (self.clock.now, *self.pool.told(), self.trained)
            return
        self.seconds.append(self.clock.now - began)
        self.tokens.append(sum(one.length for one in completions))
        self.lengths.append(self.tokens[-1] / max(len(completions), 1))
        for one in completions:
            for version, tokens in one.spans:
                self.staleness[step - version] = self.staleness.get(step - version, 0) + tokens

    def found(self) -> Found:
        """Everything after the warm-up."""
        began, busy, tokens, trained = self.start
        passed = self.clock.now - began
        told_busy, told_tokens = self.pool.told()
        count, slots = len(self.pool.replicas), self.cluster.slots
        each = self.costs.decode_each + self.costs.decode_context * self.pool.mean_context()
        full = slots / (self.costs.decode_base + each * slots)
        return Found(
            self.seconds,
            self.tokens,
            self.staleness,
            (told_busy - busy) / passed / count,
            (told_tokens - tokens) / passed / count / full,
            (self.trained - trained) / passed,
            self.lengths,
            self.clock.now,
        )


def _iterate(loop: Loop, iterations: int, one: Callable[[int], list[Completion]], *, recompute: bool = False) -> Found:
    for step in range(iterations):
        began = loop.clock.now
        completions = one(step)
        loop.publish(recompute=recompute)
        loop.note(completions, step, began)
    return loop.found()


def synchronous(cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int) -> Found:
    """All GPUs generate, then all train."""
    loop = Loop(cluster, costs, work, seed, colocated=True)

    def one(step: int) -> list[Completion]:
        loop.stream.open(None, None, interrupt=False, steps_per_update=None)
        loop.stream.request(step, [])
        loop.stream.launch()
        completions = loop.stream.take(step, step)
        loop.clock.sleep(costs.swap)
        loop.compute(completions)
        loop.clock.sleep(costs.swap)
        return completions

    return _iterate(loop, iterations, one)


def off_by_one(cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int) -> Found:
    """The next batch is generated while this one is trained on: the rollout `one_step_off`."""
    loop = Loop(cluster, costs, work, seed)

    def one(step: int) -> list[Completion]:
        completions = one_step_off([], None, loop.stream, lambda plan: [], None, step, 0, iterations + 1)
        loop.compute(completions)
        return completions

    return _iterate(loop, iterations, one)


def overlapped(cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int) -> Found:
    """Groups are trained on as they arrive, by the weights that sampled them: the rollout `periodic`."""
    loop = Loop(cluster, costs, work, seed)

    def one(step: int) -> list[Completion]:
        return periodic([], None, loop.stream, None, loop.compute, step, order="arrived")

    return _iterate(loop, iterations, one)


def partial_rollouts(
    cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int, overprovision: float = 1.5
) -> Found:
    """More run than are needed, what has not ended goes on in the next iteration: the rule of `overprovisioned`."""
    loop = Loop(cluster, costs, work, seed, colocated=True)
    target = work.groups * work.size
    launch, asked, left = math.ceil(target * overprovision - 1e-9), 0, []

    def one(step: int) -> list[Completion]:
        nonlocal asked, left
        stream = loop.stream
        while sum(one.finish == "suspended" for group in stream.groups for one in group.members) < launch:
            stream.request(asked, [])
            asked += 1
        new = [group for group in stream.groups if not group.sent]
        for group in new:
            group.sent = True
        before = loop.pool.count
        loop.pool.submit(left + [one for group in new for one in group.members])
        loop.clock.until(lambda: loop.pool.count - before >= target)
        left = loop.pool.suspend()
        ready = [g for g in stream.groups if all(m.finish != "suspended" for m in g.members)]
        loop.clock.until(lambda: all(group.scored is not None for group in ready))
        completions = stream._hand_out(ready)
        loop.clock.sleep(costs.swap)
        loop.compute(completions)
        loop.clock.sleep(costs.swap)
        return completions

    loop.stream.interrupt = loop.pool.counted = True
    return _iterate(loop, iterations, one)


def asynchronous(
    cluster: Cluster,
    costs: Costs,
    work: Work,
    iterations: int,
    seed: int,
    max_staleness: int = 4,
    ahead: int | None = None,
    ends: bool = False,
) -> Found:
    """Generation never waits for the trainer but for admission: the rollout `streamed`.

    `ends`: nothing is asked for beyond the last iteration.
    """
    loop = Loop(cluster, costs, work, seed)
    options = {"max_staleness": max_staleness, "ahead": ahead}

    def one(step: int) -> list[Completion]:
        most = iterations if ends else iterations + max_staleness + 1
        completions = streamed([], None, loop.stream, lambda plan: [], None, step, 0, most, **options)
        loop.compute(completions)
        return completions

    return _iterate(loop, iterations, one, recompute=True)


MODES: dict[str, Callable[..., Found]] = {
    "synchronous": synchronous,
    "periodic": overlapped,
    "one_step_off": off_by_one,
    "partial": partial_rollouts,
    "asynchronous": asynchronous,
}
COLOCATED = ("synchronous", "partial")
