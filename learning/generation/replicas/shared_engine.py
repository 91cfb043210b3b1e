"""Sampling by all ranks of a group: rank 0 asks, every rank's engine does its share.

Every completion has a random stream of its own, whichever rank samples it, so that ranks neither repeat each other nor
sample other texts than one process would.
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
"""Index of a request, and the samples of it that one rank does."""


class SharedEngine:
    """The engines of all ranks as one, for rank 0; the others `serve`."""

    def __init__(self, engine: EngineProtocol, group: Group):
        self.engine, self.group = engine, group

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """As one engine does. One that must stop the others at some number of completions generates alone."""
        if sampling.target is not None:
            return self.engine.generate(requests, sampling)
        if not hasattr(self.engine, "environment"):
            requests = [replace(request, row=None) for request in requests]
        # A processor is made of the recipe's functions, which every rank has bound for itself.
        self.group.broadcast((requests, replace(sampling, processor=None), sampling.processor is not None))
        return self._share(requests, sampling)

    def sync(self, version: int) -> None:
        """The policy's weights have changed: forget everything cached from the old ones."""
        self.engine.sync(version)

    def close(self) -> None:
        """End what this rank's engine has beside it."""
        if hasattr(self.engine, "close"):
            self.engine.close()

    def serve(self, processor: Processor | None) -> None:
        """Do this rank's share of what rank 0 asks for, until it says that this was all."""
        while (told := self.group.broadcast(None)) is not None:
            requests, sampling, processed = told
            self._share(requests, replace(sampling, processor=processor) if processed else sampling)

    def _share(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        units = list(split_requests(requests, self.group.size))
        mine = self.group.share(units)
        done = self.engine.generate([request for _, request in mine], sampling) if mine else []
        found: list[list[Generation]] = [[] for _ in requests]
        for (index, _), generations in zip(units, self.group.together(done), strict=True):
            found[index] += generations
        return found


def select_sampling_policy(policy: Policy, group: Group, apart: bool) -> Policy:
    """The policy that samples: the trained one, or a whole copy where each rank has a part, and samples."""
    if not group.shards:
        return policy
    samples = group.main or not apart
    return replace(policy, model=deepcopy(policy.model) if samples else policy.model)


class RemoteRankEngine:
    """The engine of a rank that samples nothing: workers of their own do, and rank 0 talks to them."""

    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Raises StepError."""
        raise StepError("sampling: rank 0 alone talks to the workers of the role `rollout`")

    def sync(self, version: int) -> None:
        """Rank 0 tells them."""


def make_rank_engine(group: Group, apart: bool, make: Callable[[], EngineProtocol]) -> EngineProtocol:
    """The engine of a rank; `apart`: sampling has workers of its own."""
    if group.size == 1:
        return make()
    if apart:
        return make() if group.main else RemoteRankEngine()
    return SharedEngine(make(), group)


def split_requests(requests: list[Request], size: int) -> Iterator[Unit]:
    """What ranks do, one after the other: whole requests, or samples apart where there are fewer requests than ranks.

    A request that is kept whole has its prompt computed once.
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
    found = do() if group.main else None
    if isinstance(engine, SharedEngine):
        group.broadcast(None) if group.main else engine.serve(processor)
    return group.broadcast(found)
