"""Engine `torch`: samples with the policy itself, in this process; its log-probabilities equal the trainer's."""

from typing import Annotated

import torch
from pydantic import Field

from learning.generation.engines.context_room import check_room
from learning.generation.engines.flight import InFlight
from learning.generation.engines.own_cache import UncachedFlight, generate_with_own_cache
from learning.generation.engines.running import Running
from learning.generation.engines.slot_check import explain_slot_misfit
from learning.generation.engines.slots import use_slot_attention
from learning.models.policy import Policy
from learning.samples.engine_protocol import Flight, Generation, Request, Sampling


class Engine:
    """Continuous batching over a decoder-only model of transformers.

    `max_slots` is how many samples run at once. A model whose attention does not fit slots (windows, sinks,
    hybrids, state spaces: found on its own weights) is decoded with its own cache instead. Nothing computed from
    weights outlives a call of `generate`; a flight computes it again after a sync.
    """

    def __init__(self, policy: Policy, *, max_slots: Annotated[int, Field(ge=1)] = 256) -> None:
        self.policy = policy
        self.max_slots = max_slots
        self.version = self.syncs = 0

    def sync(self, version: int) -> None:
        """The weights are those of the policy itself; a flight sees that what it has cached is old."""
        self.version, self.syncs = version, self.syncs + 1

    @torch.inference_mode()
    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """`n` generations of each request. Raises StepError for an empty prompt or one that leaves too little room."""
        self.check(requests, sampling)
        if not any(request.n for request in requests):
            return [[] for _ in requests]
        ends = self.policy.stop_ids
        if explain_slot_misfit(self.model):
            return generate_with_own_cache(self.model, requests, sampling, ends, self.max_slots)
        with use_slot_attention(self.model):
            batch = Running(self.model, requests, sampling, ends, self.max_slots)
            while batch.fill():
                batch.advance()
        return batch.results()

    def flight(self, sampling: Sampling) -> Flight:
        """Generation step by step, over the same slots; weights may be replaced between steps."""
        flight = UncachedFlight if explain_slot_misfit(self.model) else InFlight
        return flight(self, sampling, self.policy.stop_ids, self.max_slots)

    @property
    def model(self) -> torch.nn.Module:
        """The model that samples, without a wrapper for adapters."""
        model = self.policy.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def check(self, requests: list[Request], sampling: Sampling) -> None:
        """Raise StepError for a request that there is no room for."""
        for request in requests:
            check_room(request, sampling, engine="torch", length=self.policy.max_length)
