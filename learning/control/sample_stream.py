"""Samples that are collected while the trainer learns: a stream with versions, from which old ones are dropped.

Shapes: N worlds, S steps of each.
"""

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from learning.control.buffers.rollouts import stack_rollout
from learning.control.dataflow import ActorStream, PolicyStream, copy_weights
from schemas.errors import StepError

LOOK = 0.05
"""Seconds between looks whether the stream was closed."""


@dataclass(frozen=True)
class Sample:
    """A rollout (N, S) of one version of the weights, and the episodes that ended in it."""

    version: int
    batch: Any
    ended: tuple[tuple[int, float, int], ...] = ()


class SampleStream:
    """Samples in the order in which they were collected; the trainer takes them, those that are too old are dropped."""

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness, self.dropped = max_staleness, 0
        self.samples: queue.Queue[Sample | StepError] = queue.Queue(max_staleness + 1)
        self.closed = threading.Event()

    def put(self, sample: Sample | StepError) -> None:
        """Add a sample, or the error that ended the collection; wait while the stream is full."""
        while not self.closed.is_set():
            with suppress(queue.Full):
                self.samples.put(sample, timeout=LOOK)
                break

    def take(self, version: int) -> Sample:
        """Return the next sample that is at most `max_staleness` versions old. Raise the error of the collection."""
        while True:
            sample = self.samples.get()
            if isinstance(sample, StepError):
                raise sample
            if sample.version > version:
                raise StepError(f"a sample of version {sample.version} reached a trainer of version {version}")
            if version - sample.version <= self.max_staleness:
                return sample
            self.dropped += 1


class Collection:
    """A thread that collects rollouts with the newest weights that were published, one version for each rollout."""

    def __init__(self, worlds: ActorStream, policy: PolicyStream, steps: int, stream: SampleStream) -> None:
        self.worlds, self.policy, self.steps, self.stream = worlds, policy, steps, stream
        self.newest: tuple[int, Mapping[str, torch.Tensor]] = (0, copy_weights(policy.actor))
        self.thread = threading.Thread(target=self._collect, daemon=True, name="collection")

    def publish(self, version: int) -> None:
        """Let rollouts that begin from now on use the trainer's weights."""
        self.newest = (version, copy_weights(self.policy.actor))

    def start(self) -> None:
        """Begin to collect."""
        self.thread.start()

    def close(self) -> None:
        """End the collection after its present step."""
        self.stream.closed.set()
        if self.thread.is_alive():
            self.thread.join()

    def collect(self) -> Sample | None:
        """Return a rollout; None if the stream was closed meanwhile."""
        version, tensors = self.newest
        remote = self.policy.remote
        remote.call("load", tensors).result()
        rollout = []
        for _ in range(self.steps):
            if self.stream.closed.is_set():
                return None
            action_N, _ = remote.call("act", self.worlds.observation, None).result()
            rollout.append(self.worlds.step(action_N))
        batch = remote.call("describe", stack_rollout(rollout)).result()
        return Sample(version, batch, tuple(one for steps in rollout for one in steps.ended))

    def _collect(self) -> None:
        try:
            while (sample := self.collect()) is not None:
                self.stream.put(sample)
        except StepError as error:
            self.stream.put(error)
