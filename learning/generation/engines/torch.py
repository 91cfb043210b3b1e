"""Engine `torch`: sample with the policy itself, in this process; its log-probabilities equal the trainer's."""

from typing import Annotated

import torch
from pydantic import Field

from learning.generation.engines.context_room import check_room
from learning.generation.engines.flight import InFlight
from learning.generation.engines.own_cache import UncachedFlight, describe_missing_cache, generate_with_own_cache
from learning.generation.engines.running import Running, gains_from_sharing
from learning.generation.engines.slot_attention import (
    describe_decoding,
    explain_slot_misfit,
    shares_prompts,
    use_slot_attention,
)
from learning.models.forwards import unwrap
from learning.models.policy import Policy
from learning.samples.engine_protocol import Flight, Generation, Request, Sampling


class Engine:
    """Continuous batching over a decoder-only model of transformers.

    `max_slots` is the number of samples that run at once. A model whose cache does not fit slots (attention in chunks,
    ALiBi, caches of its own; checked on its own weights) is decoded with transformers' cache instead. No cache outlives
    a call of `generate`; a flight computes it again after a sync.
    """

    def __init__(self, policy: Policy, *, max_slots: Annotated[int, Field(ge=1)] = 256) -> None:
        self.policy = policy
        self.max_slots = max_slots
        self.version = self.syncs = 0

    def sync(self, version: int) -> None:
        """Record that the policy's weights have changed, so that flights drop their caches."""
        self.version, self.syncs = version, self.syncs + 1

    @torch.inference_mode()
    def generate(self, requests: list[Request], sampling: Sampling) -> list[list[Generation]]:
        """Return `n` generations of each request; raise StepError if a prompt is empty or too long."""
        self.check(requests, sampling)
        if not any(request.n for request in requests):
            return [[] for _ in requests]
        ends = self.policy.stop_ids
        if explain_slot_misfit(self.model):
            return generate_with_own_cache(self.model, requests, sampling, ends, self.max_slots)
        shares = gains_from_sharing(self.model, requests, self.max_slots) and shares_prompts(self.model)
        with use_slot_attention(self.model):
            batch = Running(self.model, requests, sampling, ends, self.max_slots, shares=shares)
            while batch.fill():
                batch.advance()
        return batch.results()

    def flight(self, sampling: Sampling) -> Flight:
        """Return a flight for stepwise generation; weights may be replaced between steps."""
        flight = UncachedFlight if explain_slot_misfit(self.model) else InFlight
        return flight(self, sampling, self.policy.stop_ids, self.max_slots)

    def describe(self) -> dict[str, str]:
        """Return the note `decoding` for a step's metrics."""
        return describe_decoding(self.model) | describe_missing_cache(self.model)

    @property
    def model(self) -> torch.nn.Module:
        """Return the model that samples, without a wrapper for adapters."""
        return unwrap(self.policy.model)

    def check(self, requests: list[Request], sampling: Sampling) -> None:
        """Raise StepError if a request does not fit into the model's context."""
        for request in requests:
            check_room(request, sampling, engine="torch", length=self.policy.max_length)
