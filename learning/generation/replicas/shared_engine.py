"""Sampling by all ranks of a training group: rank 0 requests, every rank's engine samples its share.

Every completion has its own random stream, whichever rank samples it, so that ranks do not repeat each other and sample
the same texts as one process.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from learning.models.policy import Policy
from learning.parallel.group import Group
from learning.samples.engine_protocol import EngineProtocol, Generation, Processor, Request, Sampling
from schemas.errors import StepError

Found = TypeVar("Found")
Unit = tuple[int, Request]
"""Index of a request, and the part of it that one rank samples."""


class SharedEngine:
    """The engines of all ranks as one engine, for rank 0; the other ranks call `serve`."""

    def __init__(self, engine: EngineProtocol, group: Group):
        self.engine, self.group = engine, group

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return `n` generations of each request; with a target number of completions, rank 0 samples alone."""
        if sampling.target is not None:
            return self.engine.generate(requests, sampling)
        if not hasattr(self.engine, "environment"):
            requests = [replace(request, row=None) for request in requests]
        # A processor consists of functions of the recipe, which every rank has bound itself.
        self.group.broadcast((requests, replace(sampling, processor=None), sampling.processor is not None))
        return self._share(requests, sampling)

    def sync(self, version: int) -> None:
        """Drop everything cached from older weights."""
        self.engine.sync(version)

    def close(self) -> None:
        """Close this rank's engine."""
        if (close := getattr(self.engine, "close", None)) is not None:
            close()

    def serve(self, processor: Processor | None) -> None:
        """Sample this rank's share of rank 0's requests, until rank 0 ends the loop."""
        while (message := self.group.broadcast(None)) is not None:
            requests, sampling, processed = message
            self._share(requests, replace(sampling, processor=processor) if processed else sampling)

    def _share(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        units = list(split_requests(requests, self.group.size))
        own_units = self.group.share(units)
        sampled = self.engine.generate([request for _, request in own_units], sampling) if own_units else []
        results: list[list[Generation]] = [[] for _ in requests]
        for (index, _), generations in zip(units, self.group.together(sampled), strict=True):
            results[index] += generations
        return results


def select_sampling_policy(policy: Policy, group: Group, apart: bool) -> Policy:
    """Return the policy that samples: the trained one, or a full copy if ranks hold shards and this one samples.

    An unread policy has no values to copy.
    """
    if not group.shards:
        return policy
    samples = (group.main or not apart) and policy.unread is None
    return replace(policy, model=deepcopy(policy.model) if samples else policy.model)


class RemoteRankEngine:
    """Stand-in engine of the ranks above 0 if workers sample: only rank 0 sends requests to them."""

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Raise StepError."""
        raise StepError("sampling: only rank 0 may send requests to the workers of the role `rollout`")

    def sync(self, version: int) -> None:
        """Do nothing: rank 0 sends the weights."""


def make_rank_engine(group: Group, apart: bool, make: Callable[[], EngineProtocol]) -> EngineProtocol:
    """Return the engine of a rank; `apart` is whether separate workers sample."""
    if group.size == 1:
        return make()
    if apart:
        return make() if group.main else RemoteRankEngine()
    return SharedEngine(make(), group)


def split_requests(requests: list[Request], size: int) -> Iterator[Unit]:
    """Yield the parts of requests for the ranks: complete requests, or parts if there are fewer requests than ranks.

    The prompt of a request that is not divided is computed only once.
    """
    for index, request in enumerate(requests):
        parts = 1 if len(requests) >= size else min(request.n, size)
        borders = [request.n * part // parts for part in range(parts + 1)]
        for start, end in pairwise(borders):
            yield index, replace(request, first=request.first + start, n=end - start)


def by_main(
    group: Group, engine: EngineProtocol | SharedEngine, processor: Processor | None, do: Callable[[], Found]
) -> Found:
    """What `do` finds on rank 0, on every rank; while it samples, the others do their shares."""
    if group.size == 1:
        return do()
    result = do() if group.main else None
    if isinstance(engine, SharedEngine):
        group.broadcast(None) if group.main else engine.serve(processor)
    return group.broadcast(result)
