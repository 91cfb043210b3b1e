"""The service of a rollout worker: a policy loaded from its folder and an engine over it.

An engine that generates step by step runs in a `RolloutService`; one that is only called for batches, such as the
client of a server, in `BatchService`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from learning.data.chat_settings import apply_chat
from learning.generation.services.rescoring import compute_likelihoods
from learning.generation.services.rollout_service import RolloutService, Service
from learning.generation.weights.local import PolicyReceiver, read_weights
from learning.lookup import build
from learning.models.forwards import apply_compute_options
from learning.models.policy import Policy, load_policy
from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Generation, Request, Sampling
from schemas.chat import Chat
from schemas.training import Training
from schemas.use import EngineUse


class BatchService:
    """A service over an engine that samples a batch per call: queued requests are sampled by `collect`."""

    def __init__(self, engine: EngineProtocol, take: Callable[[Any], None], policy: Policy) -> None:
        self.engine, self.take, self.policy = engine, take, policy
        self.queued: list[tuple[int, Request, Sampling]] = []
        self.tokens, self.calls = 0, 0

    def submit(self, requests: Sequence[tuple[int, Request]], sampling: Sampling) -> None:
        """Queue requests."""
        self.queued += [(ticket, request, sampling) for ticket, request in requests]

    def collect(self, wait_s: float = 0.0) -> list[tuple[int, Generation]]:
        """Sample and return all queued completions with the first one's sampling options, however long it takes."""
        if not self.queued:
            time.sleep(wait_s)
            return []
        sampling = self.queued[0][2]
        batch = [(ticket, request) for ticket, request, other in self.queued if other == sampling]
        self.queued = [entry for entry in self.queued if entry[2] != sampling]
        generations = self.engine.generate([request for _, request in batch], sampling)
        self.calls += 1
        self.tokens += sum(len(generation.token_ids) for of_request in generations for generation in of_request)
        return [
            (ticket, replace(generation, sample=request.first + i))
            for (ticket, request), of_request in zip(batch, generations, strict=True)
            for i, generation in enumerate(of_request)
        ]

    def suspend(self) -> list[tuple[int, Generation]]:
        """Take out and return all queued completions, which have no token."""
        queued, self.queued = self.queued, []
        return [
            (ticket, Generation([], [], "suspended", sample=request.first + i))
            for ticket, request, _ in queued
            for i in range(request.n)
        ]

    def load(self, receipt: Any) -> None:
        """Load the weights of a receipt; no completion runs between two calls."""
        self.take(receipt)

    def likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float = 1.0) -> list[list[float]]:
        """Return log-probabilities under the current weights."""
        return compute_likelihoods(self.policy.model, pairs, temperature)

    def stats(self) -> dict[str, float]:
        """Return the numbers of tokens and calls."""
        return {"tokens": self.tokens, "calls": self.calls}


def serve(
    use: EngineUse, folder: str, dtype: str, training: Training | None = None, chat: Chat | None = None
) -> Service:
    """Return the service of a worker: the policy of a folder, the engine of the recipe, new weights by file.

    The model computes with the options of `training`, as the trained one, and turns end as `chat` says.
    """
    torch.use_deterministic_algorithms(True)
    policy = load_policy(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu", dtype=dtype)
    policy.model.requires_grad_(False)
    if chat is not None:
        apply_chat(policy.tokenizer, chat)
    if training is not None:
        apply_compute_options(policy.model, training)
    engine = build(use, policy)
    take = PolicyReceiver(policy, engine, read_weights).load
    if isinstance(engine, FlyingEngine):
        return RolloutService(engine, take, policy).start()
    return BatchService(engine, take, policy)
